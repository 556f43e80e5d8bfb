-- Named queries of the SQLite graph store. {braces} are filled with text of the program itself, never with values:
-- {columns} column names, {places} question marks, {guard} a compiled guard over the table `nodes`.

-- name: revision
SELECT revision FROM state

-- name: advance
UPDATE state SET revision = ?

-- name: changes
SELECT revision, kind, subject FROM changes WHERE revision > ? ORDER BY revision, place LIMIT ?

-- name: changes_of
SELECT revision, kind, subject FROM changes WHERE revision = ? ORDER BY place

-- name: put_change
INSERT INTO changes (revision, place, kind, subject) VALUES (?, ?, ?, ?)

-- name: nodes_by_id
SELECT {columns} FROM nodes INDEXED BY nodes_by_id WHERE id IN ({places}) AND {guard}

-- name: revisions_by_id
SELECT id, revision FROM nodes INDEXED BY nodes_by_id WHERE id IN ({places}) AND {guard}

-- name: nodes_of_path
SELECT {columns} FROM nodes WHERE account = ? AND project = ? AND source_path = ?

-- name: scan
SELECT {columns} FROM nodes WHERE {guard} ORDER BY id

-- name: count
SELECT count(*) FROM nodes WHERE {guard}

-- name: put_node
INSERT INTO nodes ({columns}) VALUES ({places}) ON CONFLICT (id) DO UPDATE SET {updates}

-- name: drop_node
DELETE FROM nodes WHERE id = ?

-- name: ends
SELECT ends.asked, ends.type, ends.direction, ends.other, nodes.revision, ends.account, ends.project, ends.properties FROM (
    SELECT from_id AS asked, type, 'outgoing' AS direction, to_id AS other, account, project, properties
    FROM edges WHERE from_id IN ({places})
    UNION ALL
    SELECT to_id, type, 'incoming', from_id, account, project, properties
    FROM edges INDEXED BY edges_by_target WHERE to_id IN ({places}) AND from_id <> to_id
) AS ends CROSS JOIN nodes INDEXED BY nodes_by_id ON nodes.id = ends.other WHERE {guard}

-- name: crowd
SELECT
    (SELECT count(*) FROM (SELECT 1 FROM edges WHERE from_id IN ({places}) LIMIT ?))
    + (SELECT count(*) FROM (SELECT 1 FROM edges INDEXED BY edges_by_target WHERE to_id IN ({places}) LIMIT ?))

-- name: edges_by_key
WITH wanted (from_id, type, to_id) AS (VALUES {rows})
SELECT {edge_columns} FROM wanted
CROSS JOIN edges ON edges.from_id = wanted.from_id AND edges.type = wanted.type AND edges.to_id = wanted.to_id

-- name: edges_from
SELECT {edge_columns} FROM edges WHERE from_id IN ({places})

-- name: edges_of_project
SELECT {edge_columns} FROM edges WHERE account = ? AND project = ? ORDER BY from_id, type, to_id

-- name: put_edge
INSERT OR REPLACE INTO edges (from_id, type, to_id, account, project, properties) VALUES (?, ?, ?, ?, ?, ?)

-- name: drop_edge
DELETE FROM edges WHERE from_id = ? AND type = ? AND to_id = ?

-- name: files
SELECT account, project, path, content_hash, extractor, facts FROM files WHERE account = ? AND project = ? ORDER BY path

-- name: put_file
INSERT OR REPLACE INTO files (account, project, path, content_hash, extractor, facts) VALUES (?, ?, ?, ?, ?, ?)

-- name: drop_file
DELETE FROM files WHERE account = ? AND project = ? AND path = ?

-- name: projects
SELECT account, project, root, commit_id, indexed_at FROM projects WHERE account = ? ORDER BY project

-- name: put_project
INSERT OR REPLACE INTO projects (account, project, root, commit_id, indexed_at) VALUES (?, ?, ?, ?, ?)

-- name: put_key
INSERT INTO keys ({key_columns}) VALUES ({places}) ON CONFLICT (key_id) DO UPDATE SET {updates}

-- name: account_of_key
SELECT account FROM keys WHERE key_id = ?

-- name: find_key
SELECT {key_columns} FROM keys WHERE secret_hash = ?

-- name: keys
SELECT {key_columns} FROM keys WHERE account = ? ORDER BY created_at, key_id

-- name: revoke_key
UPDATE keys SET revoked_at = ? WHERE account = ? AND key_id = ? AND revoked_at IS NULL

-- name: receipt
SELECT account, key, fingerprint, answer, expires_at FROM receipts WHERE account = ? AND key = ?

-- name: put_receipt
INSERT OR REPLACE INTO receipts (account, key, fingerprint, answer, expires_at) VALUES (?, ?, ?, ?, ?)

-- name: drop_receipts
DELETE FROM receipts WHERE expires_at <= ?
