/* modelname.c - ids that users type: short, stable, and the same for all files of one model. */
#include "pool/modelname.h"

#include "base/file.h"
#include "base/mem.h"
#include "format/modelref.h"

#include <ctype.h>
#include <string.h>
#include <strings.h>

/* "m-00001-of-00003" → "m": a model in several files has one name. */
static size_t without_part(const char *s, size_t n)
{
    if (n < 16 || s[n - 15] != '-' || strncmp(s + n - 9, "-of-", 4) != 0) return n;
    for (size_t i = 0; i < 5; i++)
        if (!isdigit((unsigned char)s[n - 14 + i]) || !isdigit((unsigned char)s[n - 5 + i]))
            return n;
    return n - 15;
}

static char *join(struct str a, struct str b)
{
    char *id = mem_alloc(a.n + b.n + 1);

    if (!id) return NULL;
    if (a.n) memcpy(id, a.p, a.n);
    if (b.n) memcpy(id + a.n, b.p, b.n);
    return id;
}

/* x/onnx/model.onnx is x, x/model_quantized.onnx is x_quantized: the folder names the model, the
 * file its variant. false: path is no such name. */
static bool split_onnx(struct str path, struct str *folder, struct str *variant)
{
    ptrdiff_t slash = (ptrdiff_t)path.n - 1;
    struct str base;

    while (slash >= 0 && path.p[slash] != '/') slash--;
    if (slash < 1) return false;
    base = str_skip(path, (size_t)slash + 1);
    if (!str_starts(base, STR("model")) || base.n < 10 || !str_ends(base, STR(".onnx")))
        return false;
    *variant = str_of(base.p + 5, base.n - 10);
    *folder = str_take(path, (size_t)slash);
    if (str_ends(*folder, STR("/onnx")) && folder->n >= 6) folder->n -= 5;
    for (size_t i = folder->n; i-- > 0;)
        if (folder->p[i] == '/') {
            *folder = str_skip(*folder, i + 1);
            break;
        }
    return true;
}

char *model_id_of(const char *path)
{
    static const char *const ends[] = { ".gguf", ".safetensors", ".onnx" };
    struct str p = str_c(path), folder, variant;
    const char *base;
    size_t n;

    while (p.n > 1 && p.p[p.n - 1] == '/') p.n--;
    if (split_onnx(p, &folder, &variant)) return join(folder, variant);
    base = p.p + p.n;
    while (base > p.p && base[-1] != '/') base--;
    n = (size_t)(p.p + p.n - base);
    /* A folder's name may have dots: only known extensions are removed. */
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t m = strlen(ends[i]);
        if (n <= m || strncasecmp(base + n - m, ends[i], m) != 0) continue;
        n = without_part(base, n - m);
        break;
    }
    return join(str_of(base, n), STR(""));
}

char *model_id_of_name(const char *name, const char *path)
{
    struct hf_ref r;

    if (file_exists(name)) return model_id_of(name);
    if (modelref_parse(&r, str_c(name), NULL) == OK && file_is_dir(path))
        return join(r.name, STR(""));
    return model_id_of(path);
}

/* The folder before what names the model: in "a/x/onnx/model.onnx" that is a. */
static struct str prefix_of(struct str rel)
{
    struct str folder, variant, rest = rel;

    if (split_onnx(rel, &folder, &variant)) rest = str_of(rel.p, (size_t)(folder.p - rel.p));
    else
        while (rest.n && rest.p[rest.n - 1] != '/') rest.n--;
    return rest; /* with its slash; or empty */
}

char *model_id_below(const char *rel)
{
    struct str prefix = prefix_of(str_c(rel));
    char *name = model_id_of(rel), *id = name ? join(prefix, str_c(name)) : NULL;

    mem_free(name);
    return id;
}

static bool read_digits(const char *s, int *out)
{
    *out = 0;
    for (int i = 0; i < 5; i++) {
        if (!isdigit((unsigned char)s[i])) return false;
        *out = *out * 10 + (s[i] - '0');
    }
    return true;
}

bool model_part_of(struct str name, int *part, int *count)
{
    const char *tail = name.p + name.n - MODEL_PART_TAIL;

    return name.n > MODEL_PART_TAIL && tail[0] == '-' && read_digits(tail + 1, part) &&
           strncmp(tail + 6, "-of-", 4) == 0 && read_digits(tail + 10, count) &&
           strncmp(tail + 15, ".gguf", 5) == 0;
}
