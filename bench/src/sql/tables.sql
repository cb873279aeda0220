-- The business tables and those of the baselines. Oncebox migrates its own.

CREATE TABLE ledger (order_id uuid NOT NULL, customer text NOT NULL, cents bigint NOT NULL, note text NOT NULL);

-- Rows that all messages fight for.
CREATE TABLE account (id bigint PRIMARY KEY, cents bigint NOT NULL);
INSERT INTO account VALUES (0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, 0), (9, 0);

-- Rows that handlers update in opposite order.
CREATE TABLE crossing (id bigint PRIMARY KEY, updates bigint NOT NULL);
INSERT INTO crossing
WITH RECURSIVE n (id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM n WHERE id < 999) SELECT id, 0 FROM n;

-- Modulus. Its foreign key is left out, to its advantage.
CREATE TABLE modulus_message (
    id uuid PRIMARY KEY,
    type text NOT NULL,
    content text NOT NULL,
    occurred_on_utc timestamptz NOT NULL,
    processed_on_utc timestamptz
);
CREATE TABLE modulus_consumer (
    inbox_message_id uuid NOT NULL,
    name text NOT NULL,
    PRIMARY KEY (inbox_message_id, name)
);

-- TurboMediator.
CREATE TABLE turbomediator_message (
    message_id varchar(500) NOT NULL,
    handler_type varchar(500) NOT NULL,
    message_type varchar(500) NOT NULL,
    received_at timestamptz NOT NULL,
    processed_at timestamptz,
    PRIMARY KEY (message_id, handler_type)
);
CREATE INDEX turbomediator_processed_at ON turbomediator_message (processed_at);

-- Vulthil.
CREATE TABLE vulthil_message (message_id text PRIMARY KEY, processed_at timestamptz NOT NULL);

-- One unit per transaction, written by hand.
CREATE TABLE claim (
    handler text NOT NULL,
    message_key text NOT NULL,
    processed_at timestamptz NOT NULL,
    PRIMARY KEY (handler, message_key)
);
