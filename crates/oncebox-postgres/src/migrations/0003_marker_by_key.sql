-- Markers are found by their key first. Handlers and kinds are few: two markers of the same ones differ in the key only, and
-- whoever looks for one would compare the other two in vain at every step.
alter table "{schema}".marker drop constraint marker_pkey;
alter table "{schema}".marker add constraint marker_pkey primary key (key, kind, handler);

insert into "{schema}".version (version) values (3);
