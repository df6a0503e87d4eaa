/* models.c - several models in one program, with memory for one of them: a runtime loads a model
 * when a request needs it, and unloads the one that nobody uses.
 *
 *     models MODEL MODEL ... */
#include <tern.h>

#include <stdio.h>
#include <string.h>

static const char *const states[] = { "unloaded", "loading", "ready", "draining", "failed" };

static int ask(tern_model *m, const char *prompt)
{
    tern_request *r = NULL;
    tern_params p;
    tern_event ev;
    int rc;

    tern_params_init(&p, m);
    p.raw = 1;
    p.temp = 0;
    p.max_tokens = 16;
    p.deadline_ms = 60000; /* also while the model is loaded */
    rc = tern_submit(&r, m, prompt, strlen(prompt), &p);
    while (rc == TERN_OK && (rc = tern_next(r, &ev)) == TERN_OK) {
        fwrite(ev.text, 1, ev.n, stdout);
        if (ev.finish != TERN_FINISH_NONE) break;
    }
    puts("");
    tern_request_close(r);
    return rc;
}

static void show(tern_runtime *rt)
{
    tern_model *m;
    tern_model_info i;
    char **names = NULL;
    size_t n = 0;

    if (tern_list(rt, &names, &n) != TERN_OK) return;
    for (size_t k = 0; k < n; k++) {
        if (tern_find(&m, rt, names[k]) != TERN_OK) continue;
        if (tern_info(m, &i) == TERN_OK)
            printf("  %-12s %-9s %6.1f MB resident, loaded %d times\n", i.id, states[i.state],
                   (double)i.resident_bytes / 1e6, (int)i.n_loads);
        tern_close(m);
    }
    tern_free(names);
}

int main(int argc, char **argv)
{
    tern_runtime_options o;
    tern_runtime *rt = NULL;
    char name[32];
    int rc;

    if (argc < 2) {
        fprintf(stderr, "usage: models MODEL...\n");
        return 2;
    }
    tern_runtime_options_init(&o);
    o.models_max = 1;
    rc = tern_runtime_open(&rt, &o);
    for (int i = 1; i < argc && rc == TERN_OK; i++) {
        tern_model *m = NULL;

        snprintf(name, sizeof name, "model-%d", i);
        rc = tern_load(&m, rt, name, argv[i], NULL);
        if (rc == TERN_OK) rc = ask(m, "Once upon a time");
        if (rc == TERN_OK) show(rt);
        tern_close(m); /* the model stays in the runtime */
    }
    if (rc != TERN_OK) fprintf(stderr, "models: %s: %s\n", tern_code_name(rc), tern_error());
    tern_runtime_close(rt);
    return rc == TERN_OK ? 0 : 1;
}
