-- Sites of a fabric, spaces and stores of others, and what is on its way between them (docs/design/following.md).

CREATE TABLE peer (
    id BLOB NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    key BLOB NOT NULL,
    old_key BLOB,
    old_key_until INTEGER,
    key_change TEXT,
    confirmed INTEGER NOT NULL,
    urls TEXT NOT NULL,
    dialable INTEGER NOT NULL,
    issuers TEXT NOT NULL,
    state TEXT NOT NULL,
    changed INTEGER NOT NULL,
    changed_by BLOB NOT NULL
) STRICT, WITHOUT ROWID;

-- Keys that this site had before, whose tokens are still good (docs/design/trust.md).
CREATE TABLE retired_key (
    key BLOB NOT NULL PRIMARY KEY,
    until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE invitation (
    hash BLOB NOT NULL PRIMARY KEY,
    made_by TEXT NOT NULL,
    expires INTEGER NOT NULL,
    used_by BLOB
) STRICT, WITHOUT ROWID;

ALTER TABLE space ADD COLUMN home BLOB;
ALTER TABLE space ADD COLUMN behind TEXT;

-- Attempts in a row that achieved nothing; null is none (docs/design/tasks.md).
ALTER TABLE task ADD COLUMN vain INTEGER;

-- A name is unique at its site, no longer in the table: the constraint can only go with the table.
CREATE TABLE store_new (
    st INTEGER NOT NULL PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    site BLOB,
    name TEXT NOT NULL,
    connector TEXT NOT NULL,
    layout TEXT NOT NULL,
    config TEXT NOT NULL,
    secret BLOB,
    state TEXT NOT NULL
) STRICT;
INSERT INTO store_new (st, id, name, connector, layout, config, secret, state)
    SELECT st, id, name, connector, layout, config, secret, state FROM store;
DROP TABLE store;
ALTER TABLE store_new RENAME TO store;
CREATE UNIQUE INDEX store_own_name ON store (name) WHERE site IS NULL;

CREATE TABLE arrival (
    id BLOB NOT NULL PRIMARY KEY,
    state TEXT NOT NULL,
    lease BLOB NOT NULL,
    fence INTEGER NOT NULL,
    sp INTEGER NOT NULL,
    st INTEGER NOT NULL,
    key TEXT NOT NULL,
    token TEXT NOT NULL,
    identity TEXT,
    version INTEGER,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX arrival_key ON arrival (st, key);
CREATE INDEX arrival_lease ON arrival (lease);

CREATE TABLE outbox (
    number INTEGER NOT NULL PRIMARY KEY,
    sp INTEGER NOT NULL,
    version INTEGER NOT NULL,
    st INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;
CREATE INDEX outbox_copy ON outbox (sp, version, st);

CREATE TABLE told (
    site BLOB NOT NULL,
    id BLOB NOT NULL,
    answer TEXT NOT NULL,
    since INTEGER NOT NULL,
    PRIMARY KEY (site, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX told_since ON told (since);
