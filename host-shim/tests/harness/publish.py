"""Plays a recording over a libzmq PUB socket: publish.py bind|connect ENDPOINT FRAMES.JSONL

An XPUB shows when the subscription arrives, so nothing is lost. Ends when its standard input does.
"""

import base64
import json
import sys

import zmq

how, endpoint, frames = sys.argv[1:]
socket = zmq.Context.instance().socket(zmq.XPUB)
socket.setsockopt(zmq.LINGER, 0)
getattr(socket, how)(endpoint)
if not socket.poll(20_000):
    sys.exit("no subscription came")
socket.recv()
with open(frames) as lines:
    for record in map(json.loads, lines):
        if record["src"] == "sub":
            socket.send_multipart([base64.b64decode(frame) for frame in record["frames"]])
sys.stdin.read()
