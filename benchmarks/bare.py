"""`python -m benchmarks.bare FILE --port PORT`: one FastAPI route that returns the bytes of a file."""

from __future__ import annotations

import argparse
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from fastapi.responses import HTMLResponse


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    body = options.file.read_bytes()
    app = FastAPI(openapi_url=None)

    @app.get("/", response_class=HTMLResponse)
    async def page() -> HTMLResponse:
        return HTMLResponse(body)

    # The same server settings as `legible serve`.
    uvicorn.run(app, port=options.port, log_level="warning", access_log=False, server_header=False)


if __name__ == "__main__":
    main()
