"""A server of files on this machine that breaks off, stalls, lies and refuses as a test tells it to."""

import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Dict, List, Optional, Tuple


@dataclass
class Answer:
    """How one request is answered.

    Args:
        send: only so many bytes of the content are sent, then the connection ends
        stall: ... or, it stays open without another byte
        longer: so many bytes are announced that do not come (or, negative, that come and are not announced)
        status: refuse with this number
        ranges: whether ``Range`` is understood
        length: whether the length is announced at all
        shift: a range begins so many bytes too late
        location: redirect
    """

    send: Optional[int] = None
    stall: bool = False
    longer: int = 0
    status: int = 200
    ranges: bool = True
    length: bool = True
    shift: int = 0
    location: str = ""


@dataclass
class Files:
    """What is served. ``plan`` answers the first requests, ``default`` all others."""

    url: str = ""
    files: Dict[str, bytes] = field(default_factory=dict)
    plan: List[Answer] = field(default_factory=list)
    default: Answer = field(default_factory=Answer)
    requests: List[Tuple[str, Optional[str]]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)


def handler(served):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            wanted = self.headers.get("Range")
            served.requests.append((self.path, wanted))
            answer = served.plan.pop(0) if served.plan else served.default
            content = served.files.get(self.path)
            if answer.location:
                self.send_response(302)
                self.send_header("Location", answer.location)
                self.end_headers()
                return
            if answer.status != 200 or content is None:
                self.send_error(answer.status if answer.status != 200 else 404)
                return
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and answer.ranges else 0
            if start and start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            begin = start + answer.shift
            if start:
                self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content) + answer.longer}")
            if answer.length:
                self.send_header("Content-Length", str(len(content) - start + answer.longer))
            self.end_headers()
            try:
                self.wfile.write(content[begin:] if answer.send is None else content[begin : begin + answer.send])
                self.wfile.flush()
            except ConnectionError:  # the client has had enough
                return
            if answer.stall:
                served.released.wait(60)

        def log_message(self, *args):
            pass

    return Handler


@contextmanager
def serve(files, plan=(), default=None):
    """Serve ``{"/name": bytes}`` for the block; yields :class:`Files`."""
    served = Files(files=dict(files), plan=list(plan), default=default or Answer())
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(served))
    server.daemon_threads = True
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
