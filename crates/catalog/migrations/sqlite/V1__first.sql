-- The layout is described in docs/design/rows.md. Times are microseconds since 1970.

CREATE TABLE site (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    id BLOB,
    name TEXT,
    fence INTEGER NOT NULL,
    created INTEGER
) STRICT;
INSERT INTO site (one, fence) VALUES (1, 0);

CREATE TABLE store (
    st INTEGER NOT NULL PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    name TEXT NOT NULL UNIQUE,
    connector TEXT NOT NULL,
    layout TEXT NOT NULL,
    config TEXT NOT NULL,
    secret BLOB,
    state TEXT NOT NULL
) STRICT;

CREATE TABLE space (
    sp INTEGER NOT NULL PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    name TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    scope TEXT NOT NULL,
    store BLOB,
    state TEXT NOT NULL,
    term INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    next_id INTEGER NOT NULL,
    created INTEGER NOT NULL
) STRICT;

CREATE TABLE entry (
    sp INTEGER NOT NULL,
    id INTEGER NOT NULL,
    parent INTEGER NOT NULL,
    name TEXT NOT NULL,
    kind INTEGER NOT NULL,
    created INTEGER NOT NULL,
    modified INTEGER NOT NULL,
    version INTEGER,
    size INTEGER,
    root BLOB,
    mtime INTEGER,
    digests TEXT,
    PRIMARY KEY (sp, id)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX entry_name ON entry (sp, parent, name);

CREATE TABLE version (
    sp INTEGER NOT NULL,
    id INTEGER NOT NULL,
    entry INTEGER NOT NULL,
    size INTEGER NOT NULL,
    root BLOB,
    created INTEGER NOT NULL,
    superseded INTEGER NOT NULL,
    PRIMARY KEY (sp, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX version_entry ON version (sp, entry);

CREATE TABLE replica (
    sp INTEGER NOT NULL,
    version INTEGER NOT NULL,
    st INTEGER NOT NULL,
    entry INTEGER NOT NULL,
    key TEXT NOT NULL,
    state TEXT NOT NULL,
    generation TEXT,
    checked INTEGER,
    PRIMARY KEY (sp, version, st)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX replica_key ON replica (st, key);

CREATE TABLE grants (
    sp INTEGER NOT NULL,
    entry INTEGER NOT NULL,
    subject TEXT NOT NULL,
    permission TEXT NOT NULL,
    PRIMARY KEY (sp, entry, subject)
) STRICT, WITHOUT ROWID;

CREATE TABLE journal (
    sp INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    term INTEGER NOT NULL,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    kind TEXT NOT NULL,
    v INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (sp, seq)
) STRICT;

CREATE TABLE lease (
    id BLOB NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL,
    holder TEXT NOT NULL,
    fence INTEGER NOT NULL UNIQUE,
    expires INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX lease_expires ON lease (expires);

CREATE TABLE intent (
    id BLOB NOT NULL PRIMARY KEY,
    lease BLOB NOT NULL,
    fence INTEGER NOT NULL,
    sp INTEGER NOT NULL,
    version INTEGER NOT NULL,
    entry INTEGER NOT NULL,
    parent INTEGER NOT NULL,
    name TEXT NOT NULL,
    base INTEGER,
    st INTEGER NOT NULL,
    key TEXT NOT NULL,
    token TEXT NOT NULL,
    identity TEXT,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX intent_key ON intent (st, key);
CREATE INDEX intent_lease ON intent (lease);

CREATE TABLE garbage (
    st INTEGER NOT NULL,
    key TEXT NOT NULL,
    sp INTEGER NOT NULL,
    version INTEGER NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (st, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX garbage_version ON garbage (sp, version);
CREATE INDEX garbage_since ON garbage (st, since, key);

CREATE TABLE task (
    id BLOB NOT NULL PRIMARY KEY,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    owner TEXT NOT NULL,
    spec TEXT NOT NULL,
    cursor TEXT,
    progress TEXT NOT NULL,
    fault TEXT,
    lease BLOB,
    attempt INTEGER NOT NULL,
    not_before INTEGER NOT NULL,
    deadline INTEGER,
    created INTEGER NOT NULL,
    changed INTEGER NOT NULL,
    claimed INTEGER,
    idempotency_key TEXT
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX task_key ON task (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX task_queue ON task (state, owner, not_before);
CREATE INDEX task_turn ON task (owner, claimed) WHERE claimed IS NOT NULL;
CREATE INDEX task_lease ON task (lease) WHERE lease IS NOT NULL;

CREATE TABLE task_item (
    task BLOB NOT NULL,
    number INTEGER NOT NULL,
    path TEXT NOT NULL,
    outcome TEXT NOT NULL,
    code TEXT,
    detail TEXT NOT NULL,
    PRIMARY KEY (task, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE task_event (
    task BLOB NOT NULL,
    number INTEGER NOT NULL,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (task, number)
) STRICT, WITHOUT ROWID;

-- What a task has brought, packed; `number` is that of the record's last copy (docs/decisions/2026-11-22-receipts-from-packed-rows.md).
CREATE TABLE task_copy (
    task BLOB NOT NULL,
    number INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    sources TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (task, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE idempotency (
    caller TEXT NOT NULL,
    key TEXT NOT NULL,
    hash BLOB NOT NULL,
    status INTEGER,
    answer TEXT,
    since INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    PRIMARY KEY (caller, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_expires ON idempotency (expires);

CREATE TABLE token (
    id BLOB NOT NULL PRIMARY KEY,
    subject TEXT NOT NULL,
    scopes TEXT NOT NULL,
    label TEXT,
    issued INTEGER NOT NULL,
    expires INTEGER NOT NULL,
    revoked INTEGER
) STRICT, WITHOUT ROWID;
