// Version 1. A vertex is an :Item, made known by its id; the records of the store are those that are :Node as well. An :Item
// alone is the end of an edge that names a node which is not there (yet, or any more). Lists are lists, maps are JSON text; the
// guard columns carry the names of cluster.model.guard, so that a guard compiles to a WHERE.
// Each statement may be run again: two processes may open an empty database at once.

CREATE CONSTRAINT meta_once IF NOT EXISTS FOR (m:Meta) REQUIRE m.only IS UNIQUE;
CREATE CONSTRAINT item_id IF NOT EXISTS FOR (n:Item) REQUIRE n.id IS UNIQUE;
CREATE CONSTRAINT change_revision IF NOT EXISTS FOR (c:Change) REQUIRE c.revision IS UNIQUE;
CREATE CONSTRAINT file_path IF NOT EXISTS FOR (f:File) REQUIRE (f.account, f.project, f.path) IS UNIQUE;
CREATE CONSTRAINT project_name IF NOT EXISTS FOR (p:Project) REQUIRE (p.account, p.project) IS UNIQUE;
CREATE CONSTRAINT key_id IF NOT EXISTS FOR (k:Key) REQUIRE k.key_id IS UNIQUE;
CREATE CONSTRAINT key_secret IF NOT EXISTS FOR (k:Key) REQUIRE k.secret_hash IS UNIQUE;
CREATE INDEX node_id IF NOT EXISTS FOR (n:Node) ON (n.id);
CREATE INDEX node_project IF NOT EXISTS FOR (n:Node) ON (n.account, n.project);
CREATE INDEX node_revision IF NOT EXISTS FOR (n:Node) ON (n.revision);
CREATE INDEX node_path IF NOT EXISTS FOR (n:Node) ON (n.source_path);
CREATE INDEX edge_project IF NOT EXISTS FOR ()-[e:EDGE]-() ON (e.account, e.project);
