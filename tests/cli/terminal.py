"""A terminal for tests: the binary, or another program, on a pseudo-terminal of its own."""
import pty
import re
import select
import termios
import time

from harness import BIN, environment, os, signal


class Terminal:
    """stdin, stdout and stderr are the terminal."""

    def __init__(self, *args, program=BIN, **env):
        self.seen = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as a shell starts programs; Python ignores it
            os.execve(program, [program, *args], environment(TERM="xterm", COLUMNS="100", **env))

    @classmethod
    def of(cls, program, *args, **env):
        """Another program on a terminal of its own."""
        return cls(*args, program=program, **env)

    def read(self, seconds):
        if select.select([self.fd], [], [], seconds)[0]:
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # the other side is gone
                return False
            self.seen += data
            return bool(data)
        return True

    def wait_for(self, pattern, seconds=90):
        """Waits until the pattern appears in output that no earlier call has waited for."""
        end = time.time() + seconds
        while time.time() < end:
            if m := re.search(pattern, self.seen, re.S):
                before, self.seen = self.seen[: m.end()], self.seen[m.end():]
                return before
            if not self.read(0.2) and not re.search(pattern, self.seen, re.S):
                break
        raise AssertionError(f"{pattern} did not come; seen {self.seen[-400:]!r}")

    def modes(self):
        return termios.tcgetattr(self.fd)[3]

    def send(self, text, at_prompt=True):
        """Sends text. at_prompt: waits until the line editor has taken over the terminal, which it does just after
        it shows the prompt. Only the line editor clears IEXTEN."""
        end = time.time() + 30
        while at_prompt and self.modes() & termios.IEXTEN and time.time() < end:
            time.sleep(0.005)
        os.write(self.fd, text)

    def end(self, seconds=60):
        end = time.time() + seconds
        while time.time() < end:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self.read(0.05) and select.select([self.fd], [], [], 0.05)[0]:
                    pass
                os.close(self.fd)
                return os.waitstatus_to_exitcode(status)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return "hung"


__all__ = ["Terminal", "re", "termios", "time"]
