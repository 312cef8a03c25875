CREATE EXTENSION vector;
CREATE TABLE public.wide (id int PRIMARY KEY, s sparsevec);
CREATE TABLE public.narrow (id int PRIMARY KEY);
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
