#!/usr/bin/env python3
"""A service that gets its messages from the gateway. It needs nothing but Python.

The gateway delivers at least once, and says with each delivery which effect it is for: the header Idempotency-Key is the same
for every try. Keeping it in the same transaction as the effect makes the effect once, whoever is killed whenever.
"""

import argparse
import json
import random
import sqlite3
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--port", type=int, default=9000)
parser.add_argument("--database", default="receipts.db")
parser.add_argument("--flaky", action="store_true", help="fail about every third time, before or after the effect")
parser.add_argument("--lenient", action="store_true", help='also take cents that are written as text, as in "4200"')
options = parser.parse_args()


def open_database():
    database = sqlite3.connect(options.database, timeout=30, isolation_level=None)
    database.execute("create table if not exists handled (effect_id text primary key)")
    # No constraint: a doubled receipt would show.
    database.execute("create table if not exists receipt (message text)")
    return database


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode(errors="replace")
        if options.flaky and random.random() < 0.2:
            return self.answer(503, "not now")
        try:
            cents = json.loads(body).get("cents", 0)  # an order without a price is free
        except (ValueError, AttributeError):
            return self.answer(422, "this is no JSON object")
        if options.lenient and isinstance(cents, str) and cents.isdigit():
            cents = int(cents)
        if not isinstance(cents, int):
            return self.answer(422, f"cents is {cents!r}, which is no whole number")
        database = open_database()
        database.execute("begin immediate")
        effect = (self.headers["Idempotency-Key"],)
        fresh = database.execute("insert into handled values (?) on conflict do nothing", effect).rowcount == 1
        if fresh:
            database.execute("insert into receipt values (?)", (body,))
        database.execute("commit")
        database.close()
        print("receipt" if fresh else "known  ", "attempt", self.headers["Oncebox-Attempt"], body, flush=True)
        if options.flaky and random.random() < 0.2:
            return self.answer(500, "the effect is there, and the answer is not")
        self.answer(200, "thank you")

    def answer(self, status, text):
        body = text.encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            pass  # the gateway is gone: it will deliver again

    def log_message(self, *_):
        pass


open_database().close()
print(f"receiving on http://127.0.0.1:{options.port}", flush=True)
ThreadingHTTPServer(("127.0.0.1", options.port), Receiver).serve_forever()
