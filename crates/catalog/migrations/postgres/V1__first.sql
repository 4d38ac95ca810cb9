-- The layout is described in docs/design/rows.md. Times are microseconds since 1970.

CREATE TABLE site (
    one BIGINT NOT NULL PRIMARY KEY CHECK (one = 1),
    id UUID,
    name TEXT COLLATE "C",
    fence BIGINT NOT NULL,
    created BIGINT
);
INSERT INTO site (one, fence) VALUES (1, 0);

CREATE TABLE store (
    st BIGINT NOT NULL PRIMARY KEY,
    id UUID NOT NULL UNIQUE,
    name TEXT COLLATE "C" NOT NULL UNIQUE,
    connector TEXT COLLATE "C" NOT NULL,
    layout TEXT COLLATE "C" NOT NULL,
    config TEXT COLLATE "C" NOT NULL,
    secret BYTEA,
    state TEXT COLLATE "C" NOT NULL
);

CREATE TABLE space (
    sp BIGINT NOT NULL PRIMARY KEY,
    id UUID NOT NULL UNIQUE,
    name TEXT COLLATE "C" NOT NULL UNIQUE,
    owner TEXT COLLATE "C" NOT NULL,
    scope TEXT COLLATE "C" NOT NULL,
    store UUID,
    state TEXT COLLATE "C" NOT NULL,
    term BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    next_id BIGINT NOT NULL,
    created BIGINT NOT NULL
);

CREATE TABLE entry (
    sp BIGINT NOT NULL,
    id BIGINT NOT NULL,
    parent BIGINT NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    kind BIGINT NOT NULL,
    created BIGINT NOT NULL,
    modified BIGINT NOT NULL,
    version BIGINT,
    size BIGINT,
    root BYTEA,
    mtime BIGINT,
    digests TEXT COLLATE "C",
    PRIMARY KEY (sp, id)
);
CREATE UNIQUE INDEX entry_name ON entry (sp, parent, name);

CREATE TABLE version (
    sp BIGINT NOT NULL,
    id BIGINT NOT NULL,
    entry BIGINT NOT NULL,
    size BIGINT NOT NULL,
    root BYTEA,
    created BIGINT NOT NULL,
    superseded BIGINT NOT NULL,
    PRIMARY KEY (sp, id)
);
CREATE INDEX version_entry ON version (sp, entry);

CREATE TABLE replica (
    sp BIGINT NOT NULL,
    version BIGINT NOT NULL,
    st BIGINT NOT NULL,
    entry BIGINT NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    generation TEXT COLLATE "C",
    checked BIGINT,
    PRIMARY KEY (sp, version, st)
);
CREATE UNIQUE INDEX replica_key ON replica (st, key);

CREATE TABLE grants (
    sp BIGINT NOT NULL,
    entry BIGINT NOT NULL,
    subject TEXT COLLATE "C" NOT NULL,
    permission TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (sp, entry, subject)
);

CREATE TABLE journal (
    sp BIGINT NOT NULL,
    seq BIGINT NOT NULL,
    term BIGINT NOT NULL,
    at BIGINT NOT NULL,
    actor TEXT COLLATE "C" NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    v BIGINT NOT NULL,
    body TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (sp, seq)
);

CREATE TABLE lease (
    id UUID NOT NULL PRIMARY KEY,
    kind TEXT COLLATE "C" NOT NULL,
    holder TEXT COLLATE "C" NOT NULL,
    fence BIGINT NOT NULL UNIQUE,
    expires BIGINT NOT NULL,
    body TEXT COLLATE "C" NOT NULL
);
CREATE INDEX lease_expires ON lease (expires);

CREATE TABLE intent (
    id UUID NOT NULL PRIMARY KEY,
    lease UUID NOT NULL,
    fence BIGINT NOT NULL,
    sp BIGINT NOT NULL,
    version BIGINT NOT NULL,
    entry BIGINT NOT NULL,
    parent BIGINT NOT NULL,
    name TEXT COLLATE "C" NOT NULL,
    base BIGINT,
    st BIGINT NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    token TEXT COLLATE "C" NOT NULL,
    identity TEXT COLLATE "C",
    body TEXT COLLATE "C" NOT NULL
);
CREATE UNIQUE INDEX intent_key ON intent (st, key);
CREATE INDEX intent_lease ON intent (lease);

CREATE TABLE garbage (
    st BIGINT NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    sp BIGINT NOT NULL,
    version BIGINT NOT NULL,
    since BIGINT NOT NULL,
    PRIMARY KEY (st, key)
);
CREATE INDEX garbage_version ON garbage (sp, version);
CREATE INDEX garbage_since ON garbage (st, since, key);

CREATE TABLE task (
    id UUID NOT NULL PRIMARY KEY,
    kind TEXT COLLATE "C" NOT NULL,
    state TEXT COLLATE "C" NOT NULL,
    owner TEXT COLLATE "C" NOT NULL,
    spec TEXT COLLATE "C" NOT NULL,
    cursor TEXT COLLATE "C",
    progress TEXT COLLATE "C" NOT NULL,
    fault TEXT COLLATE "C",
    lease UUID,
    attempt BIGINT NOT NULL,
    not_before BIGINT NOT NULL,
    deadline BIGINT,
    created BIGINT NOT NULL,
    changed BIGINT NOT NULL,
    claimed BIGINT,
    idempotency_key TEXT COLLATE "C"
);
CREATE UNIQUE INDEX task_key ON task (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX task_queue ON task (state, owner, not_before);
CREATE INDEX task_turn ON task (owner, claimed) WHERE claimed IS NOT NULL;
CREATE INDEX task_lease ON task (lease) WHERE lease IS NOT NULL;

CREATE TABLE task_item (
    task UUID NOT NULL,
    number BIGINT NOT NULL,
    path TEXT COLLATE "C" NOT NULL,
    outcome TEXT COLLATE "C" NOT NULL,
    code TEXT COLLATE "C",
    detail TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (task, number)
);

CREATE TABLE task_event (
    task UUID NOT NULL,
    number BIGINT NOT NULL,
    at BIGINT NOT NULL,
    kind TEXT COLLATE "C" NOT NULL,
    detail TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (task, number)
);

-- What a task has brought, packed; `number` is that of the record's last copy (docs/decisions/2026-11-22-receipts-from-packed-rows.md).
CREATE TABLE task_copy (
    task UUID NOT NULL,
    number BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    sources TEXT COLLATE "C" NOT NULL,
    body TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (task, number)
);

CREATE TABLE idempotency (
    caller TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    hash BYTEA NOT NULL,
    status BIGINT,
    answer TEXT COLLATE "C",
    since BIGINT NOT NULL,
    expires BIGINT NOT NULL,
    PRIMARY KEY (caller, key)
);
CREATE INDEX idempotency_expires ON idempotency (expires);

CREATE TABLE token (
    id UUID NOT NULL PRIMARY KEY,
    subject TEXT COLLATE "C" NOT NULL,
    scopes TEXT COLLATE "C" NOT NULL,
    label TEXT,
    issued BIGINT NOT NULL,
    expires BIGINT NOT NULL,
    revoked BIGINT
);

-- One row for each transaction of the last hour: whoever lost the connection during COMMIT finds out here. The number of
-- the transaction alone is not enough, since a crashed server gives it out again.
CREATE TABLE outcome (
    id UUID NOT NULL PRIMARY KEY,
    at BIGINT NOT NULL
);
