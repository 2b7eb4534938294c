"""A small HTTP server for tests: it keeps what it was asked, and answers as it is told."""
import http.server
import threading

BOUND = 60


class Site:
    """`asked` has (method, path, headers, body); `status` is what it answers, or a function that does."""

    def __init__(self, status=200):
        self.asked, self.status = [], status
        ours = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def _any(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                ours.asked.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body.decode()))
                status = ours.status(self) if callable(ours.status) else ours.status
                if status:
                    self.send_response(status)
                    self.send_header("Content-Length", "2")
                    self.end_headers()
                    self.wfile.write(b"ok")

            do_POST = do_DELETE = do_PUT = do_GET = _any

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self):
        """No more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(BOUND)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()
