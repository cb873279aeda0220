-- What handlers two and three write; the first one writes to the ledger.
CREATE TABLE ledger_2 (order_id uuid NOT NULL, customer text NOT NULL, cents bigint NOT NULL, note text NOT NULL);
CREATE TABLE ledger_3 (order_id uuid NOT NULL, customer text NOT NULL, cents bigint NOT NULL, note text NOT NULL);

-- Milan Jovanović's inbox, as he gives it.
CREATE TABLE inbox_messages (
    id uuid PRIMARY KEY,
    type varchar(255) NOT NULL,
    content jsonb NOT NULL,
    received_on_utc timestamptz NOT NULL,
    processed_on_utc timestamptz NULL,
    error text NULL
);
CREATE INDEX idx_inbox_messages_unprocessed ON inbox_messages (received_on_utc, processed_on_utc)
    INCLUDE (id, type, content)
    WHERE processed_on_utc IS NULL;

-- A queue with a row for each message and handler.
CREATE TABLE row_queue (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    handler integer NOT NULL,
    body text NOT NULL
);
