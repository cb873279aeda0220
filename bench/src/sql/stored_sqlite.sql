-- What handlers two and three write; the first one writes to the ledger.
CREATE TABLE ledger_2 (order_id uuid NOT NULL, customer text NOT NULL, cents bigint NOT NULL, note text NOT NULL);
CREATE TABLE ledger_3 (order_id uuid NOT NULL, customer text NOT NULL, cents bigint NOT NULL, note text NOT NULL);

-- Milan Jovanović's inbox. His index covers the content too; here it does not, to his advantage.
CREATE TABLE inbox_messages (
    id uuid PRIMARY KEY,
    type text NOT NULL,
    content text NOT NULL,
    received_on_utc text NOT NULL,
    processed_on_utc text NULL,
    error text NULL
);
CREATE INDEX idx_inbox_messages_unprocessed ON inbox_messages (received_on_utc) WHERE processed_on_utc IS NULL;

-- A queue with a row for each message and handler.
CREATE TABLE row_queue (id integer PRIMARY KEY, handler integer NOT NULL, body text NOT NULL);
