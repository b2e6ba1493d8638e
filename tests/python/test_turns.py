"""Ctrl-C at each place where Python may raise it: the turn is given back, and nobody waits for ever."""

import dis
import gc
import sys
import threading

import pytest


class Interrupt:
    """While it is on, this thread gets a KeyboardInterrupt at the nth place. Python raises it at the
    beginning of a function, after a call and at a jump back."""

    PLACES = ("CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE")

    def __init__(self, module, n):
        self.file, self.left, self.raised, self.before = module.__file__, n, False, {}

    def __enter__(self):
        # A garbage collection while opcodes are traced crashes Python 3.11.7.
        gc.disable()
        sys.settrace(self.trace)

    def __exit__(self, *_):
        sys.settrace(None)
        gc.enable()

    def trace(self, frame, event, _):
        if frame.f_code.co_filename != self.file:
            return None
        frame.f_trace_opcodes = True
        if event == "call":
            self.place()
        elif event == "opcode":
            if self.before.get(frame, "").startswith(self.PLACES):
                self.place()
            self.before[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        return self.trace

    def place(self):
        self.left -= 1
        if self.left == 0:
            self.raised = True
            raise KeyboardInterrupt


def ends(call):
    """Runs the call in a thread. Returns whether it comes to an end."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


def interrupted_everywhere(scene):
    """Plays the scene with a Ctrl-C at each of its places in turn. Returns how many there are."""
    for n in range(1, 1000):
        if not scene(n):
            return n - 1
    raise AssertionError("the scene has no end")


@pytest.fixture()
def turns_module(riffle):
    from riffle import _turns

    return _turns


def interrupt(module, n, call):
    """Returns whether the Ctrl-C came."""
    at = Interrupt(module, n)
    try:
        with at:
            call()
    except KeyboardInterrupt:
        pass
    return at.raised


def test_ctrl_c_in_a_call_that_need_not_wait(turns_module):
    def scene(n):
        turns, freed = turns_module.Turns(), []

        def call():
            turns.free(lambda: freed.append(1))  # in the call: it waits until the end

        raised = interrupt(turns_module, n, lambda: turns.run(call))
        assert turns._holder is None and not turns._waiting, n
        assert ends(lambda: turns.run(lambda: None)), n
        assert len(freed) == 1 or (raised and len(freed) == 0), n
        return raised

    assert interrupted_everywhere(scene) > 10


def test_ctrl_c_in_the_wait_for_a_turn(turns_module):
    def scene(n):
        turns, begun, go = turns_module.Turns(), threading.Event(), threading.Event()

        def hold():
            begun.set()
            go.wait(20)

        holder = threading.Thread(target=lambda: turns.run(hold), daemon=True)
        holder.start()
        begun.wait(20)
        threading.Timer(0.005, go.set).start()
        raised = interrupt(turns_module, n, lambda: turns.run(lambda: None))
        go.set()
        holder.join(20)
        assert not holder.is_alive() and turns._holder is None and not turns._waiting, n
        assert ends(lambda: turns.run(lambda: None)), n
        return raised

    assert interrupted_everywhere(scene) > 10


def test_ctrl_c_where_others_wait(turns_module):
    def scene(n):
        turns, order, threads = turns_module.Turns(), [], []

        def call():
            for i in range(2):
                work = lambda i=i: turns.run(lambda: order.append(i))
                threads.append(threading.Thread(target=work, daemon=True))
                threads[-1].start()
                while len(turns._waiting) <= i:
                    pass

        raised = interrupt(turns_module, n, lambda: turns.run(call))
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads), n
        assert order == [0, 1] or (raised and not threads), (n, order)
        assert turns._holder is None and ends(lambda: turns.run(lambda: None)), n
        return raised

    assert interrupted_everywhere(scene) > 10


def test_ctrl_c_at_the_beginning_of_an_answer(riffle, model):
    from riffle import _answer

    def scene(n):
        answer = model.generate("The rain", max_tokens=400, ignore_eos=True)
        raised = interrupt(_answer, n, lambda: next(answer))
        answer.close()
        assert ends(lambda: model.generate("The sun", max_tokens=1).text), n
        assert model.default_context._turns._holder is None, n
        return raised

    assert interrupted_everywhere(scene) > 10
