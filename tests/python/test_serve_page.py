"""The page of riffle-serve in a browser without a window."""

import re
import shutil
import subprocess

import pytest
from serving import need, running

need("starlette", "uvicorn")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
def test_the_page_shows_model_plan_and_requests(model_path, tmp_path):
    def page(url):
        """Returns the text of the page after its scripts have run for some seconds."""
        done = subprocess.run(
            [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=4000", "--dump-dom",
             url],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert "Content Security Policy" not in done.stderr, done.stderr
        return re.sub(r"<[^>]*>", " ", done.stdout)

    for server in running(model_path, "--api-key", "secret"):
        assert "this server asks for its key" in page(server.url)
    for server in running(model_path):
        assert "No request yet" in page(server.url)
        server.complete("Once", max_tokens=7)
        server.post("/v1/completions", {"prompt": 3})
        text = page(server.url)
        for part in ("riffle-27m-32k, 4,096 tokens of context", "/v1/completions", "refused",
                     "answer tokens/s", "KV read", "Memory plan", "host kv", "26,747,392"):  # fmt: skip
            assert part in text, (part, text)
