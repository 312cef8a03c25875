CREATE TABLE m (id int, region text, v text, w int, PRIMARY KEY (region, id)) PARTITION BY LIST (region);
CREATE TABLE m_eu PARTITION OF m FOR VALUES IN ('eu'); ALTER TABLE m_eu REPLICA IDENTITY FULL;
CREATE TABLE m_us PARTITION OF m FOR VALUES IN ('us');
CREATE TABLE u (id int NOT NULL, region text NOT NULL, v text, CONSTRAINT uu UNIQUE (region, id)) PARTITION BY LIST (region);
CREATE TABLE u_eu PARTITION OF u FOR VALUES IN ('eu'); ALTER TABLE u_eu REPLICA IDENTITY FULL;
INSERT INTO m VALUES (50,'eu','s',1),(51,'eu',NULL,NULL),(1,'us','s',2);
INSERT INTO u VALUES (50,'eu','s'),(51,'eu',NULL);
CREATE PUBLICATION dbz_publication FOR TABLE m, u WITH (publish_via_partition_root);
