// Named queries of the Neo4j graph store. {braces} with one word are filled with text of the program itself, never with values:
// {guard} is a compiled guard over the variable `n`. Every value is a parameter.

// name: version
MATCH (m:Meta) RETURN m.schema AS version

// name: is_used
MATCH (n) RETURN true AS used LIMIT 1

// name: migrated
MERGE (m:Meta {only: 1})
ON CREATE SET m.revision = 0, m.schema = $version
ON MATCH SET m.schema = CASE WHEN m.schema < $version THEN $version ELSE m.schema END

// name: indexes_ready
CALL db.awaitIndexes(300)

// name: lock
// Setting the property takes the write lock, before the revision is read.
MATCH (m:Meta) SET m.lock = 0 RETURN m.revision AS revision

// name: revision
MATCH (m:Meta) RETURN m.revision AS revision

// name: advance
MATCH (m:Meta) SET m.revision = $revision
CREATE (:Change {revision: $revision, kinds: $kinds, subjects: $subjects, size: size($kinds)})

// name: change_sizes
MATCH (c:Change) WHERE c.revision > $since RETURN c.revision AS revision, c.size AS size ORDER BY c.revision LIMIT $limit

// name: changes
MATCH (c:Change) WHERE $since < c.revision <= $until
RETURN c.revision AS revision, c.kinds AS kinds, c.subjects AS subjects ORDER BY c.revision

// name: nodes_by_id
MATCH (n:Item) WHERE n.id IN $ids AND n:Node AND {guard} RETURN properties(n) AS node

// name: nodes_of_paths
UNWIND $paths AS path
MATCH (n:Node) WHERE n.source_path = path[2] AND n.account = path[0] AND n.project = path[1]
RETURN properties(n) AS node

// name: scan
MATCH (n:Node) WHERE {guard} RETURN properties(n) AS node ORDER BY n.id

// name: count
MATCH (n:Node) WHERE {guard} RETURN count(*) AS found

// name: neighbours
UNWIND $ids AS asked
CALL (asked) {
    MATCH (a:Item {id: asked})-[e:EDGE]-(n:Node) WHERE {guard}
    WITH e, n, CASE WHEN startNode(e) = a THEN 'outgoing' ELSE 'incoming' END AS direction
    ORDER BY e.type, direction, n.id
    WITH collect({edge: e, node: n, direction: direction}) AS found
    UNWIND found[..$limit] AS one
    RETURN size(found) AS total, one
}
RETURN asked, total, one.direction AS direction, properties(one.edge) AS edge,
    startNode(one.edge).id AS from_id, endNode(one.edge).id AS to_id, properties(one.node) AS node

// name: edges_by_key
UNWIND $keys AS key
MATCH (a:Item {id: key[0]}) MATCH (b:Item {id: key[2]}) MATCH (a)-[e:EDGE {type: key[1]}]->(b)
RETURN a.id AS from_id, b.id AS to_id, properties(e) AS edge

// name: edges_from
MATCH (a:Item)-[e:EDGE]->(b:Item) WHERE a.id IN $ids RETURN a.id AS from_id, b.id AS to_id, properties(e) AS edge

// name: edges_of_project
MATCH (a:Item)-[e:EDGE]->(b:Item) WHERE e.account = $account AND e.project = $project
RETURN a.id AS from_id, b.id AS to_id, properties(e) AS edge ORDER BY from_id, e.type, to_id

// name: put_nodes
UNWIND $rows AS row
MERGE (n:Item {id: row.id})
SET n:Node, n = row

// name: drop_nodes
UNWIND $ids AS id
MATCH (n:Node {id: id})
REMOVE n:Node SET n = {id: id}

// name: new_edges
UNWIND $rows AS row
MERGE (a:Item {id: row.from_id})
MERGE (b:Item {id: row.to_id})
CREATE (a)-[e:EDGE]->(b)
SET e = row.edge

// name: put_edges
UNWIND $rows AS row
MATCH (a:Item {id: row.from_id}) MATCH (b:Item {id: row.to_id}) MATCH (a)-[e:EDGE {type: row.edge.type}]->(b)
SET e = row.edge

// name: drop_edges
UNWIND $keys AS key
MATCH (a:Item {id: key[0]}) MATCH (b:Item {id: key[2]}) MATCH (a)-[e:EDGE {type: key[1]}]->(b)
DELETE e

// name: drop_unused
// Ends that no edge needs any more, among those that this write let go of.
UNWIND $ids AS id
MATCH (n:Item {id: id}) WHERE NOT n:Node AND NOT EXISTS { (n)-[:EDGE]-() }
DELETE n

// name: files
MATCH (f:File) WHERE f.account = $account AND f.project = $project RETURN properties(f) AS file ORDER BY f.path

// name: put_files
UNWIND $rows AS row
MERGE (f:File {account: row.account, project: row.project, path: row.path})
SET f = row

// name: drop_files
UNWIND $keys AS key
MATCH (f:File {account: key[0], project: key[1], path: key[2]})
DELETE f

// name: projects
MATCH (p:Project) WHERE p.account = $account RETURN properties(p) AS project ORDER BY p.project

// name: put_projects
UNWIND $rows AS row
MERGE (p:Project {account: row.account, project: row.project})
SET p = row

// name: account_of_key
MATCH (k:Key {key_id: $key_id}) RETURN k.account AS account

// name: put_key
MERGE (k:Key {key_id: $row.key_id})
SET k = $row

// name: find_key
MATCH (k:Key {secret_hash: $secret_hash}) RETURN properties(k) AS key

// name: keys
MATCH (k:Key) WHERE k.account = $account RETURN properties(k) AS key ORDER BY k.created_at, k.key_id

// name: revoke_key
MATCH (k:Key {key_id: $key_id}) WHERE k.account = $account AND k.revoked_at IS NULL
SET k.revoked_at = $now
RETURN true AS revoked

// name: receipt
MATCH (r:Receipt {account: $account, key: $key}) RETURN properties(r) AS receipt

// name: put_receipts
UNWIND $rows AS row
MERGE (r:Receipt {account: row.account, key: row.key})
SET r = row

// name: drop_receipts
MATCH (r:Receipt) WHERE r.expires_at <= $now DELETE r
