CREATE SCHEMA s2; CREATE TABLE aa (id int PRIMARY KEY, v text); CREATE TABLE bb (id int PRIMARY KEY, v text); CREATE TABLE s2.cc (id int PRIMARY KEY, v text); CREATE TABLE "Dd e" (id int PRIMARY KEY, v text); CREATE TABLE ex (id int PRIMARY KEY);
CREATE TABLE "f.g" (id int PRIMARY KEY); CREATE TABLE zeta (id int); CREATE TABLE s2.aa (id int);CREATE TABLE h1 (id int);CREATE TABLE h2 (id int);CREATE TABLE h3 (id int);CREATE TABLE h4 (id int);CREATE TABLE h5 (id int);CREATE TABLE h6 (id int);
CREATE PUBLICATION dbz_publication FOR ALL TABLES;
