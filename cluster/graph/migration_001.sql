-- Lists and maps are JSON text. The guard columns carry the names of cluster.model.guard, so that a guard compiles to a WHERE.

CREATE TABLE state (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    revision INTEGER NOT NULL
);
INSERT INTO state VALUES (1, 0);

CREATE TABLE nodes (
    row INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    account TEXT NOT NULL,
    project TEXT NOT NULL,
    store TEXT NOT NULL,
    labels TEXT NOT NULL,
    text TEXT NOT NULL,
    properties TEXT NOT NULL,
    scope TEXT,
    agents TEXT,
    keywords TEXT NOT NULL,
    visibility TEXT,
    owner_agent TEXT,
    shared_with TEXT NOT NULL,
    admission TEXT,
    status TEXT,
    confidence REAL,
    created_at INTEGER NOT NULL,
    last_confirmed_at INTEGER,
    deleted_at INTEGER,
    source_repository TEXT,
    source_path TEXT,
    source_start_line INTEGER,
    source_end_line INTEGER,
    source_commit TEXT,
    content_hash TEXT NOT NULL,
    revision INTEGER NOT NULL
);
CREATE UNIQUE INDEX nodes_by_id ON nodes (id);
CREATE INDEX nodes_by_project ON nodes (account, project, id);
CREATE INDEX nodes_by_path ON nodes (source_path, account, project) WHERE source_path IS NOT NULL;
CREATE INDEX nodes_by_revision ON nodes (revision);

-- Ends may name nodes that are not there (yet, or any more): on purpose no foreign keys.
CREATE TABLE edges (
    from_id TEXT NOT NULL,
    type TEXT NOT NULL,
    to_id TEXT NOT NULL,
    account TEXT NOT NULL,
    project TEXT NOT NULL,
    properties TEXT NOT NULL,
    PRIMARY KEY (from_id, type, to_id)
) WITHOUT ROWID;
CREATE INDEX edges_by_target ON edges (to_id, type, from_id);
CREATE INDEX edges_by_project ON edges (account, project);

CREATE TABLE changes (
    revision INTEGER NOT NULL,
    place INTEGER NOT NULL,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    PRIMARY KEY (revision, place)
) WITHOUT ROWID;

CREATE TABLE files (
    account TEXT NOT NULL,
    project TEXT NOT NULL,
    path TEXT NOT NULL,
    content_hash TEXT NOT NULL,
    extractor TEXT NOT NULL,
    facts TEXT NOT NULL,
    PRIMARY KEY (account, project, path)
);

CREATE TABLE projects (
    account TEXT NOT NULL,
    project TEXT NOT NULL,
    root TEXT NOT NULL,
    commit_id TEXT,
    indexed_at INTEGER NOT NULL,
    PRIMARY KEY (account, project)
);

CREATE TABLE keys (
    key_id TEXT PRIMARY KEY,
    account TEXT NOT NULL,
    name TEXT NOT NULL,
    secret_hash TEXT NOT NULL UNIQUE,
    principal_key_id TEXT NOT NULL,
    role TEXT NOT NULL,
    agent TEXT,
    scopes TEXT,
    projects TEXT,
    teams TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    revoked_at INTEGER
);
CREATE INDEX keys_by_account ON keys (account, created_at, key_id);
