/* A program that has functions of its own with names that tern uses inside: linking the library
 * must neither fail nor call these. */
#include <tern.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *eval(void *a);
void *eval(void *a)
{
    abort();
    return a;
}
void buf_add(void *b, const void *p, size_t n);
void buf_add(void *b, const void *p, size_t n)
{
    (void)b, (void)p, (void)n;
    abort();
}
int map_get(const void *m);
int map_get(const void *m)
{
    (void)m;
    abort();
}
int lex(void);
int lex(void) { abort(); }
int file_read(void);
int file_read(void) { abort(); }

int main(int argc, char **argv)
{
    tern_model *m;
    tern_request *r;
    tern_params p;
    tern_event ev;
    tern_message msg = { "user", "Tell me a story." };
    size_t n = 0;

    if (argc != 2) return 2;
    if (tern_open(&m, argv[1], NULL) != TERN_OK) goto failed;
    tern_params_init(&p, m);
    p.max_tokens = 8;
    p.json_schema = "{\"type\": \"object\"}";
    if (tern_submit_chat(&r, m, &msg, 1, &p) != TERN_OK) goto failed;
    do {
        if (tern_next(r, &ev) != TERN_OK) goto failed;
        n += ev.n;
    } while (ev.finish == TERN_FINISH_NONE);
    tern_request_close(r);
    tern_close(m);
    printf("%zu bytes of text\n", n);
    return n > 0 ? 0 : 1;
failed:
    fprintf(stderr, "%s\n", tern_error());
    return 1;
}
