/* embed.c - how similar texts are: the cosine of the embedding of the first and of each other one.
 *
 *     embed MODEL "text" "text" ... */
#include <tern.h>

#include <stdio.h>
#include <string.h>

enum { MAX = 16 };

/* Vectors have length 1, so the cosine is the dot product. */
static double dot(const float *a, const float *b, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

/* All are submitted before the first is read: they are computed together. */
static int embed(tern_model *m, char **texts, int n, tern_request **r, const float **v, size_t *len)
{
    tern_event ev;

    for (int i = 0; i < n; i++)
        if (tern_submit_embedding(&r[i], m, texts[i], strlen(texts[i]), NULL) != TERN_OK) return 0;
    for (int i = 0; i < n; i++)
        if (tern_next(r[i], &ev) != TERN_OK || tern_vector(r[i], &v[i], len) != TERN_OK) return 0;
    return 1;
}

int main(int argc, char **argv)
{
    tern_request *r[MAX] = { NULL };
    const float *v[MAX];
    tern_model *m = NULL;
    size_t len = 0;
    int n = argc - 2, ok;

    if (n < 1 || n > MAX) {
        fprintf(stderr, "usage: embed MODEL TEXT...    (up to %d)\n", MAX);
        return 2;
    }
    ok = tern_open(&m, argv[1], NULL) == TERN_OK && embed(m, argv + 2, n, r, v, &len);
    if (!ok) fprintf(stderr, "embed: %s\n", tern_error());
    for (int i = 0; ok && i < n; i++) printf("%.4f  %s\n", dot(v[0], v[i], len), argv[i + 2]);
    for (int i = 0; i < n; i++) tern_request_close(r[i]);
    tern_close(m);
    return ok ? 0 : 1;
}
