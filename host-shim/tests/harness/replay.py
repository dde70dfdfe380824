"""Answers replay requests over a libzmq ROUTER as an engine does: replay.py ENDPOINT FRAMES.JSONL topic|bare

`topic` is the framing of vLLM 0.26 and later, `bare` the one before. Ends when its standard input does.
"""

import base64
import json
import sys
import threading

import zmq

endpoint, frames, framing = sys.argv[1:]
socket = zmq.Context.instance().socket(zmq.ROUTER)
socket.setsockopt(zmq.LINGER, 0)
socket.bind(endpoint)
with open(frames) as lines:
    records = [record for record in map(json.loads, lines) if record["src"] == "sub"]
batches = [[base64.b64decode(frame) for frame in record["frames"]] for record in records]
topic = [b""] if framing == "topic" else []


def answer():
    while True:
        client, empty, start = socket.recv_multipart()
        assert empty == b"" and len(start) == 8
        for _, seq, payload in batches:
            if seq >= start:
                socket.send_multipart([client, b"", *topic, seq, payload])
        socket.send_multipart([client, b"", *topic, b"\xff" * 8, b""])


threading.Thread(target=answer, daemon=True).start()
sys.stdin.read()
