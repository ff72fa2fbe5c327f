"""A bucket of S3, of which pyarrow's file system is the client: what it asks for, and no more."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase, BytesIO
from types import TracebackType
from typing import BinaryIO, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

_BUCKET = {"/bucket": b""}
_DATE = "Sun, 01 Nov 2026 00:00:00 GMT"


class Bucket:
    """Objects that appear when they are whole. It copies none, as Azure without hierarchical names
    moves none."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        """By their keys."""
        self.written: list[str] = []
        """The keys of all that were ever written, in order."""
        self._parts: dict[str, dict[int, bytes]] = {}
        self._lock = threading.Lock()
        bucket = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002

            def do_HEAD(self) -> None:
                bucket._read(self)

            def do_GET(self) -> None:
                bucket._read(self)

            def do_PUT(self) -> None:
                bucket._write(self)

            def do_POST(self) -> None:
                bucket._write(self)

            def do_DELETE(self) -> None:
                with bucket._lock:
                    bucket.objects.pop(_key(self.path)[0], None)
                _answer(self, 204)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def address(self) -> str:
        """Where it is asked."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def url(self, folder: str) -> str:
        """Of a folder of it, with the credentials that it never looks at."""
        at = self.address.removeprefix("http://")
        return f"s3://any:any@bucket/{folder}?scheme=http&region=here&endpoint_override={at}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    # --- requests -------------------------------------------------------------------------------

    def _read(self, request: BaseHTTPRequestHandler) -> None:
        key, query = _key(request.path)
        if not key and "list-type" in query:
            _answer(request, 200, self._listed(query))
            return
        with self._lock:
            data = self.objects.get(key) if key else _BUCKET.get(urlsplit(request.path).path)
        if data is None:
            _answer(request, 404, _error("NoSuchKey"))
            return
        span = request.headers.get("Range")
        if span is None:
            _answer(request, 200, data)
            return
        first, _, last = span.removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last or len(data)) + 1]
        there = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
        _answer(request, 206, part, **{"Content-Range": there})

    def _listed(self, query: dict[str, str]) -> bytes:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        found, folders = "", set[str]()
        with self._lock:
            sizes = {key: len(data) for key, data in sorted(self.objects.items())}
        for key, size in sizes.items():
            if not key.startswith(prefix):
                continue
            rest = key.removeprefix(prefix)
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                found += (
                    f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size>"
                    f"<LastModified>2026-11-01T00:00:00.000Z</LastModified></Contents>"
                )
        for folder in sorted(folders):
            found += f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
        return _xml("ListBucketResult", f"<IsTruncated>false</IsTruncated>{found}")

    def _write(self, request: BaseHTTPRequestHandler) -> None:
        key, query = _key(request.path)
        body = _body(request)
        if "x-amz-copy-source" in request.headers:
            _answer(request, 501, _error("NotImplemented"))
        elif "uploads" in query:
            self._parts[key] = {}
            _answer(request, 200, _xml("InitiateMultipartUploadResult", "<UploadId>1</UploadId>"))
        elif "partNumber" in query:
            self._parts[key][int(query["partNumber"])] = body
            _answer(request, 200, ETag=f'"{hashlib.md5(body).hexdigest()}"')
        else:
            if "uploadId" in query:
                body = b"".join(part for _, part in sorted(self._parts.pop(key).items()))
            with self._lock:
                self.objects[key] = body
                self.written.append(key)
            _answer(request, 200, _xml("CompleteMultipartUploadResult", ""))


def _key(path: str) -> tuple[str, dict[str, str]]:
    """What a request is about: a key, and its query."""
    parts = urlsplit(path)
    query = parse_qs(parts.query, keep_blank_values=True)
    _, _, key = unquote(parts.path).lstrip("/").partition("/")
    return key, {name: values[0] for name, values in query.items()}


def _body(request: BaseHTTPRequestHandler) -> bytes:
    """As it was sent, or in the pieces that it was sent in: HTTP's, and within them S3's."""
    if request.headers.get("Transfer-Encoding") == "chunked":
        body = b"".join(_pieces(request.rfile))
    else:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
    if "aws-chunked" in request.headers.get("Content-Encoding", ""):
        body = b"".join(_pieces(BytesIO(body)))
    return body


def _pieces(stream: BinaryIO | BufferedIOBase) -> Iterator[bytes]:
    """Up to the last piece, with what trails it."""
    while size := int(stream.readline().partition(b";")[0], 16):
        yield stream.read(size)
        stream.readline()
    while stream.readline().strip():
        pass


def _answer(
    request: BaseHTTPRequestHandler, status: int, body: bytes = b"", **headers: str
) -> None:
    request.send_response(status)
    for name, value in {"Last-Modified": _DATE, "ETag": '"1"', **headers}.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    if request.command != "HEAD":
        request.wfile.write(body)


def _error(code: str) -> bytes:
    return _xml("Error", f"<Code>{code}</Code><Message>{code}</Message>")


def _xml(name: str, inside: str) -> bytes:
    return f'<?xml version="1.0"?><{name}>{inside}</{name}>'.encode()
