CREATE TABLE clocks (id int PRIMARY KEY, d date, t time, t0 time(0), t3 time(3), t5 time(5), z timetz, s timestamp, s0 timestamp(0), s2 timestamp(2), s3 timestamp(3), s5 timestamp(5), sz timestamptz(3), iv interval,
  da date[], ta time[], t2a time(2)[], sa timestamp[], s1a timestamp(1)[], za timestamptz[], tza timetz[], dr daterange);
ALTER TABLE clocks REPLICA IDENTITY FULL;
CREATE TABLE required (id int PRIMARY KEY, d date NOT NULL, t time NOT NULL, t1 time(1) NOT NULL, s timestamp NOT NULL, s2 timestamp(2) NOT NULL, da date[] NOT NULL, n text);
CREATE TABLE defaulted (id int PRIMARY KEY, d date DEFAULT '2020-02-29', d2 date NOT NULL DEFAULT '0044-03-15 BC', d3 date DEFAULT 'infinity', d4 date DEFAULT now(), t time DEFAULT '01:02:03.0405', t2 time(2) NOT NULL DEFAULT '23:59', t3 time DEFAULT '24:00:00',
  t4 time DEFAULT localtime, s timestamp DEFAULT '2020-02-29 01:02:03.456789', s2 timestamp(2) NOT NULL DEFAULT '1969-12-31 23:59:59.5', s3 timestamp DEFAULT 'infinity', s4 timestamp DEFAULT now(), s5 timestamp DEFAULT '2020-01-01', s6 timestamp(0) DEFAULT '-infinity', sz timestamptz DEFAULT '2020-01-01 00:00:00.25+03', da date[] DEFAULT '{}');
CREATE TABLE keyed (d date, t time(2), s timestamp, PRIMARY KEY (d, t, s));
CREATE TABLE toasted (id int PRIMARY KEY, n int, da date[], ta time[], sa timestamp[]);
ALTER TABLE toasted ALTER da SET STORAGE EXTERNAL, ALTER ta SET STORAGE EXTERNAL, ALTER sa SET STORAGE EXTERNAL;
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
