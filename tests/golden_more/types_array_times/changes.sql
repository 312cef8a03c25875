INSERT INTO public.clocks VALUES (1, '{10:11:12.123456,00:00:00}', '{10:11:12.123456,23:59:59.999}', '{10:11:12.6}', '{00:00:00.0009}');
INSERT INTO public.clocks VALUES (2, '{24:00:00,23:59:59.999999}', '{24:00:00}', '{23:59:59.9}', '{NULL,00:00:00.001}');
INSERT INTO public.clocks VALUES (3, '{NULL}', NULL, '{}', '{{00:00:01,00:00:02},{00:00:03,00:00:04}}');
UPDATE public.clocks SET a = NULL, three = '{12:00}' WHERE id = 1;
