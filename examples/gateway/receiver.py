#!/usr/bin/env python3
"""A service that gets its messages from the gateway. It needs only Python.

The gateway delivers at least once. The header Idempotency-Key identifies the effect: it is the same on every attempt. The
service stores it in the same transaction as the effect. So each effect happens once, even if a process is killed at any moment.
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
parser.add_argument("--lenient", action="store_true", help='also accept cents that are written as text, for example "4200"')
options = parser.parse_args()


def open_database():
    database = sqlite3.connect(options.database, timeout=30, isolation_level=None)
    database.execute("create table if not exists handled (effect_id text primary key)")
    # Without a unique constraint, so that a second receipt would be visible.
    database.execute("create table if not exists receipt (message text)")
    return database


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode(errors="replace")
        if options.flaky and random.random() < 0.2:
            return self.respond(503, "unavailable, try again")
        try:
            cents = json.loads(body).get("cents", 0)  # an order without a price is free
        except (ValueError, AttributeError):
            return self.respond(422, "the body is not a JSON object")
        if options.lenient and isinstance(cents, str) and cents.isdigit():
            cents = int(cents)
        if not isinstance(cents, int):
            return self.respond(422, f"invalid cents {cents!r}: send a whole number")
        database = open_database()
        database.execute("begin immediate")
        effect = (self.headers["Idempotency-Key"],)
        fresh = database.execute("insert into handled values (?) on conflict do nothing", effect).rowcount == 1
        if fresh:
            database.execute("insert into receipt values (?)", (body,))
        database.execute("commit")
        database.close()
        print("receipt  " if fresh else "duplicate", "attempt", self.headers["Oncebox-Attempt"], body, flush=True)
        if options.flaky and random.random() < 0.2:
            return self.respond(500, "failed after the effect")
        self.respond(200, "thank you")

    def respond(self, status, text):
        body = text.encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
        except OSError:
            pass  # the gateway has closed the connection: it will deliver again

    def log_message(self, *_):
        pass


open_database().close()
print(f"receiving on http://127.0.0.1:{options.port}", flush=True)
ThreadingHTTPServer(("127.0.0.1", options.port), Receiver).serve_forever()
