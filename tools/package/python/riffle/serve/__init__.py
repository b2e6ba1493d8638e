"""riffle-serve: a model behind OpenAI's HTTP protocol.

    riffle-serve -m model.gguf
    python3 -m riffle.serve -m model.gguf

Needs the packages starlette and uvicorn: pip install riffle[serve]. README.md of the package
describes the paths, the limits and the page.
"""
