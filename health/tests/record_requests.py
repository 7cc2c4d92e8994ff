#!/usr/bin/env python3
"""Records what HAProxy sends for each form of `option httpchk`, into fixtures/requests.json.

usage: record_requests.py HAPROXY > fixtures/requests.json
"""
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading

LINES = [
    '/', '/ping', '/ping?a=b&c=d', '"/ping"', "'/ping'", '*',
    'GET /', 'GET /ping', 'GET "/ping"', '"GET" "/ping"', 'HEAD /', 'OPTIONS *', 'OPTIONS * HTTP/1.0', 'POST /ping',
    'PUT /ping', 'PURGE /ping', 'get /ping', 'GET /a\\ b', 'GET "/a b"',
    'GET / HTTP/1.0', 'GET / HTTP/1.1', 'GET "/" "HTTP/1.0"', 'GET "/" "HTTP/1.1"',
    'GET "/ping" "HTTP/1.1\\r\\nHost: example.org"', 'GET /ping HTTP/1.1\\r\\nHost:\\ example.org',
    'GET /ping "HTTP/1.0\\r\\nHost: example.org"', "GET /ping 'HTTP/1.1\\r\\nHost: example.org'",
    'GET /ping "HTTP/1.1\\r\\nHost: example.org\\r\\nX-Test: 1"', 'GET /ping "HTTP/1.1\\r\\nHost: example.org\\r\\n"',
    'GET /ping "HTTP/1.1\\r\\nhost:example.org"', 'GET /ping "HTTP/1.1\\r\\nHost:   example.org  "',
    'GET /ping "HTTP/1.1\\r\\nUser-Agent: check\\r\\nAccept: */*"', 'GET /ping "HTTP/1.1\\r\\nConnection: close"',
    'GET /ping "HTTP/1.1\\r\\nConnection: keep-alive"', 'POST /ping "HTTP/1.1\\r\\nHost: a\\r\\n\\r\\nbody"',
    'POST /ping "HTTP/1.1\\r\\n\\r\\nbody"', 'POST /ping "HTTP/1.1\\r\\nHost: a\\r\\nContent-Length: 4\\r\\n\\r\\nbody"',
    'GET /ping HTTP/2.0', 'GET /ping HTTP', 'GET /ping 1.1', 'GET  /ping   HTTP/1.0', '\tGET\t/ping', 'GET /ping # comment',
    'GET /ping#fragment', 'GET /ping\\#fragment', 'GET /caf\u00e9', 'GET /\\x41', 'GET /a\\\\b', 'GET /a\\tb', 'GET "/a\\"b"',
    'GET http://example.org/ping HTTP/1.1', 'GET ping', 'GET "" HTTP/1.1', '"" /ping', 'GET /ping HTTP/1.1 more', 'GET /$x',
    'GET "/$x"', 'GET "/ping', 'GET /ping\\', 'GET /ping "HTTP/1.1\\r\\nno header"', 'GET /ping "HTTP/1.1\\r\\n: a"',
    'GET /ping "HTTP/1.1\\r\\nHost: a\\r\\nHost: b"', 'GET /ping "HTTP/1.1\\nHost: a"', 'GET /ping "HTTP/1.1\\r\\nX Y: a"',
    'DELETE /ping', 'TRACE /ping', 'CONNECT /ping', 'PATCH /ping', 'GET /ping "HTTP/1.0\\r\\nConnection: close"',
    'GET /ping "HTTP/1.0\\r\\nConnection: keep-alive"', 'GET /ping HTTP/1.2', 'GET /ping HTTP/0.9', 'GET /ping HTTP/1.10',
    'GET /ping "HTTP/1.1\\r\\n"', 'GET /ping "HTTP/1.0\\r\\nHost: a\\r\\n\\r\\nbody"', 'GET /\\q', 'GET "/\\q"', "GET '/a\\tb'",
    'GET "/a b', 'GET /a"b c"d', '', 'GET /ping "HTTP/1.1\\r\\nHost: example.org:8080"', 'GET /ping "HTTP/1.1\\r\\nHost : a"',
    'GET /ping "HTTP/1.1\\r\\n\\r\\n"', 'GET /a\\nb', 'GET /ping "HTTP/1.1\\r\\nX: a\\tb"', 'GET /ping "HTTP/1.1\\r\\nX: a\\r\\n b"',
    'G(T /ping', 'GET /ping "HTTP/1.1\\r\\nTransfer-Encoding: chunked"', 'GET /%zz', 'GET /ping "HTTP/1.1\\r\\nX-Empty:"',
]


def record(haproxy, line):
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(4)
    port = listener.getsockname()[1]
    got = []

    def serve():
        try:
            stream, _ = listener.accept()
            stream.settimeout(0.3)
            data = b""
            try:
                while part := stream.recv(65536):
                    data += part
            except TimeoutError:
                pass
            got.append(data)
            stream.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
            stream.close()
        except TimeoutError:
            pass

    with tempfile.TemporaryDirectory() as folder:
        text = (f"defaults\n mode http\n timeout connect 5s\n timeout server 5s\n timeout client 5s\n"
                f"frontend f\n bind {folder}/socket\n default_backend b\nbackend b\n option httpchk {line}\n server s 127.0.0.1:{port} check inter 60s\n")
        path = os.path.join(folder, "haproxy.cfg")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        check = subprocess.run([haproxy, "-c", "-f", path], capture_output=True, text=True, check=False)
        if check.returncode:
            return {"line": line, "refused": True}
        thread = threading.Thread(target=serve)
        thread.start()
        process = subprocess.Popen([haproxy, "-db", "-f", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        thread.join()
        process.terminate()
        process.wait()
    listener.close()
    if not got:
        return {"line": line, "sent": None}
    return {"line": line, "sent": got[0].decode("latin-1")}


print("[")
for number, line in enumerate(LINES):
    end = "," if number + 1 < len(LINES) else ""
    print("  " + json.dumps(record(sys.argv[1], line)) + end, flush=True)
print("]")
