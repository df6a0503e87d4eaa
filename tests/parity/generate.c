/* generate.c - load, infer, unload through tern.h: prints the token ids, then the text.
 *
 *     generate MODEL raw|chat PROMPT TOKENS TEMPERATURE SEED */
#include <tern.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int generate(tern_model *m, char **argv, char *text, size_t cap)
{
    tern_message msg = { "user", argv[3] };
    tern_request *r = NULL;
    tern_params p;
    tern_event ev = { 0 };
    size_t n = 0;
    int rc;

    tern_params_init(&p, m);
    p.max_tokens = atoi(argv[4]);
    p.temp = (float)atof(argv[5]);
    p.seed = strtoull(argv[6], NULL, 10);
    p.raw = strcmp(argv[2], "raw") == 0;
    rc = p.raw ? tern_submit(&r, m, argv[3], strlen(argv[3]), &p)
               : tern_submit_chat(&r, m, &msg, 1, &p);
    while (rc == TERN_OK && ev.finish == TERN_FINISH_NONE) {
        rc = tern_next(r, &ev);
        if (rc == TERN_OK && ev.id >= 0) printf("%d ", ev.id);
        if (rc == TERN_OK && n + ev.n < cap) memcpy(text + n, ev.text, ev.n), n += ev.n;
    }
    tern_request_close(r);
    return rc;
}

int main(int argc, char **argv)
{
    static char text[1 << 16];
    tern_runtime *rt = NULL;
    tern_model *m = NULL;
    tern_options o;
    tern_usage use = { 0 };
    int rc;

    if (argc != 7) return 2;
    tern_options_init(&o);
    o.threads = 1;
    o.context = 512;
    rc = tern_runtime_open(&rt, NULL);
    if (rc == TERN_OK) rc = tern_load(&m, rt, "m", argv[1], &o);
    if (rc == TERN_OK) rc = generate(m, argv, text, sizeof text);
    if (rc == TERN_OK) rc = tern_unload(rt, "m", -1);
    if (rc == TERN_OK) rc = tern_runtime_usage(rt, &use);
    if (rc != TERN_OK) fprintf(stderr, "%s\n", tern_error());
    printf("\n%s", text);
    tern_close(m);
    tern_runtime_close(rt);
    if (use.bytes != 0 || use.n_loaded != 0) fprintf(stderr, "the model is still loaded\n");
    return rc == TERN_OK && use.bytes == 0 && use.n_loaded == 0 ? 0 : 1;
}
