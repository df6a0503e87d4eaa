/* hubfiles.c - rules over a list of names; nothing here looks at a disk. */
#include "format/hubfiles.h"

#include "base/buf.h"
#include "base/mem.h"

#include <ctype.h>
#include <stdlib.h>
#include <strings.h>

enum { NAME_MOST = 512, PART_DIGITS = 5 };

/* ---- lists ---- */

struct hub_file *hub_files_add(struct hub_files *l, struct str name)
{
    struct hub_file *f;
    char *copy;

    if (l->n == HUB_FILES_MAX || !mem_ensure(l->at, l->cap, l->n + 1)) return NULL;
    if (!(copy = mem_alloc(name.n + 1))) return NULL;
    if (name.n) memcpy(copy, name.p, name.n);
    f = &l->at[l->n++];
    *f = (struct hub_file){ .name = copy };
    return f;
}

static int compare_files(const void *a, const void *b)
{
    return strcmp(((const struct hub_file *)a)->name, ((const struct hub_file *)b)->name);
}

void hub_files_sort(struct hub_files *l)
{
    if (l->n > 1) qsort(l->at, (size_t)l->n, sizeof *l->at, compare_files);
}

void hub_files_release(struct hub_files *l)
{
    for (int i = 0; i < l->n; i++) mem_free(l->at[i].name);
    mem_free(l->at);
    *l = (struct hub_files){ 0 };
}

/* ---- names ---- */

bool hub_name_is_safe(struct str name)
{
    size_t start = 0;

    if (name.n == 0 || name.n > NAME_MOST) return false;
    for (size_t i = 0; i <= name.n; i++) {
        struct str part;
        if (i < name.n && name.p[i] != '/') {
            unsigned char c = (unsigned char)name.p[i];
            if (c < 0x20 || c == 0x7f || c == '\\') return false;
            continue;
        }
        part = str_of(name.p + start, i - start);
        if (part.n == 0 || part.n > 255 || str_is(part, ".") || str_is(part, "..")) return false;
        start = i + 1;
    }
    return true;
}

static bool has_ending(struct str name, const char *ending)
{
    size_t n = strlen(ending);
    return name.n > n && strncasecmp(name.p + name.n - n, ending, n) == 0;
}

static bool read_digits(const char *s, int *out)
{
    *out = 0;
    for (int i = 0; i < PART_DIGITS; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        *out = *out * 10 + (s[i] - '0');
    }
    return true;
}

/* The name without its ending; n 0: it has none of the endings of weights in parts. */
static struct str stem_of(struct str name)
{
    if (has_ending(name, ".gguf")) return str_take(name, name.n - 5);
    if (has_ending(name, ".safetensors")) return str_take(name, name.n - 12);
    return str_of(name.p, 0);
}

enum { PART_TAIL = 15 }; /* bytes of "-00001-of-00003" */

bool hub_name_is_part(struct str name, int *part, int *count)
{
    struct str stem = stem_of(name);
    const char *tail = stem.p + stem.n - PART_TAIL;

    return stem.n > PART_TAIL && tail[0] == '-' && read_digits(tail + 1, part) &&
           memcmp(tail + 6, "-of-", 4) == 0 && read_digits(tail + 10, count);
}

static struct str base_of(struct str name)
{
    for (size_t i = name.n; i-- > 0;)
        if (name.p[i] == '/') return str_skip(name, i + 1);
    return name;
}

static bool is_below(struct str name) { return base_of(name).n != name.n; } /* in a subfolder */

static bool contains_word(struct str name, const char *word)
{
    size_t n = strlen(word);

    for (size_t i = 0; i + n <= name.n; i++)
        if (strncasecmp(name.p + i, word, n) == 0) return true;
    return false;
}

bool hub_name_is_gguf(struct str name)
{
    int part, count;

    if (!has_ending(name, ".gguf") || contains_word(base_of(name), "mmproj")) return false;
    return !hub_name_is_part(name, &part, &count) || part == 1;
}

/* The weights of a folder: at its top, and not the copy in the form of the model's makers. */
static bool is_folder_weight(struct str name)
{
    return has_ending(name, ".safetensors") && !is_below(name) &&
           !str_starts(name, STR("consolidated"));
}

static bool is_onnx(struct str name)
{
    return has_ending(name, ".onnx") && (!is_below(name) || str_starts(name, STR("onnx/")));
}

/* Configuration and tokenizer of a folder. */
static bool is_support(struct str name)
{
    static const char *const names[] = { "config.json",
                                         "generation_config.json",
                                         "tokenizer.json",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "vocab.json",
                                         "vocab.txt",
                                         "merges.txt",
                                         "tokenizer.model",
                                         "spiece.model",
                                         "sentencepiece.bpe.model",
                                         "chat_template.jinja",
                                         "chat_template.json",
                                         "model.safetensors.index.json",
                                         "modules.json",
                                         "sentence_bert_config.json",
                                         "1_Pooling/config.json",
                                         "1_LogitScore/config.json",
                                         "quantize_config.json",
                                         "quantization_config.json",
                                         "hf_quant_config.json",
                                         "recipe.yaml" };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (str_is(name, names[i])) return true;
    if (has_ending(name, ".jinja") && str_starts(name, STR("additional_chat_templates/")))
        return true;
    return has_ending(name, ".tiktoken") && !is_below(name);
}

/* ---- parts ---- */

static int find_file(const struct hub_files *l, struct str name)
{
    for (int i = 0; i < l->n; i++)
        if (str_is(name, l->at[i].name)) return i;
    return -1;
}

/* Are both parts of the same file? */
static bool is_same_set(struct str a, struct str b)
{
    int part, count, other;
    struct str x = stem_of(a), y = stem_of(b);

    return x.n == y.n && a.n == b.n && hub_name_is_part(a, &part, &count) &&
           hub_name_is_part(b, &part, &other) && count == other &&
           memcmp(x.p, y.p, x.n - PART_TAIL) == 0;
}

bool hub_file_is_whole(const struct hub_files *l, int i)
{
    struct str name = str_c(l->at[i].name);
    int part, count, n = 0;

    if (!hub_name_is_part(name, &part, &count)) return true;
    for (int k = 0; k < l->n; k++) n += is_same_set(name, str_c(l->at[k].name));
    return n == count;
}

/* ---- choices ---- */

static void choose_set(struct hub_files *l, int i)
{
    l->at[i].chosen = true;
    for (int k = 0; k < l->n; k++)
        if (is_same_set(str_c(l->at[i].name), str_c(l->at[k].name))) l->at[k].chosen = true;
}

static void choose_support(struct hub_files *l)
{
    for (int i = 0; i < l->n; i++)
        if (is_support(str_c(l->at[i].name))) l->at[i].chosen = true;
}

/* An ONNX file with its external data, and what belongs to its folder. */
static void choose_onnx(struct hub_files *l, int i)
{
    struct str name = str_c(l->at[i].name);

    l->at[i].chosen = true;
    for (int k = 0; k < l->n; k++) {
        struct str other = str_c(l->at[k].name);
        if (str_starts(other, name) && (has_ending(other, "_data") || has_ending(other, ".data")))
            l->at[k].chosen = true;
    }
    choose_support(l);
}

static bool is_word_char(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* Does the name have this word? "Q4_K" is not a word of "m-Q4_K_M.gguf". */
static bool has_word(struct str name, struct str word)
{
    for (size_t i = 0; word.n && i + word.n <= name.n; i++) {
        size_t end = i + word.n;
        if (strncasecmp(name.p + i, word.p, word.n) != 0) continue;
        if (i > 0 && is_word_char(name.p[i - 1])) continue;
        if (end == name.n || !is_word_char(name.p[end])) return true;
    }
    return false;
}

/* GGUF models whose names have the word; an empty word: all. Returns how many; *last: one of them. */
static int count_gguf(const struct hub_files *l, struct str word, int *last)
{
    int n = 0;

    for (int i = 0; i < l->n; i++) {
        struct str name = str_c(l->at[i].name);
        if (!hub_name_is_gguf(name) || (word.n && !has_word(name, word))) continue;
        *last = i;
        n++;
    }
    return n;
}

/* Writes "a.gguf (4.1 GB), b.gguf": models whose names have the word. */
static void list_gguf(const struct hub_files *l, struct str word, struct buf *out)
{
    for (int i = 0; i < l->n && out->n < 300; i++) {
        struct str name = str_c(l->at[i].name);
        if (!hub_name_is_gguf(name) || (word.n && !has_word(name, word))) continue;
        buf_printf(out, "%s%s", out->n ? ", " : "", l->at[i].name);
        if (l->at[i].bytes) buf_printf(out, " (%.2f GB)", (double)l->at[i].bytes / 1e9);
    }
}

static int fail_several(const struct hub_files *l, struct str word, struct err *e)
{
    struct buf names = { 0 };
    int rc;

    list_gguf(l, word, &names);
    rc = err_set(e, E_INVALID, "there are several models; add one of them after a colon: %s",
                 buf_cstr(&names));
    if (names.failed) rc = err_nomem(e, "the names of model files");
    buf_release(&names);
    return rc;
}

static int choose_gguf(struct hub_files *l, struct str word, struct hub_choice *out, struct err *e)
{
    int at = 0, n = count_gguf(l, word, &at);

    if (n > 1 && !word.n && count_gguf(l, STR("Q4_K_M"), &at) == 1) n = 1;
    if (n > 1) return fail_several(l, word, e);
    if (n == 1) {
        choose_set(l, at);
        *out = (struct hub_choice){ HUB_GGUF, at };
    }
    return OK;
}

static void choose_folder(struct hub_files *l)
{
    for (int i = 0; i < l->n; i++)
        if (is_folder_weight(str_c(l->at[i].name))) l->at[i].chosen = true;
    choose_support(l);
}

/* onnx/model.onnx or model.onnx, else the first one. */
static int find_onnx(const struct hub_files *l)
{
    int i = find_file(l, STR("onnx/model.onnx"));

    if (i < 0) i = find_file(l, STR("model.onnx"));
    for (int k = 0; k < l->n && i < 0; k++)
        if (is_onnx(str_c(l->at[k].name))) i = k;
    return i;
}

/* A file that was named by its path. */
static void choose_named(struct hub_files *l, int i, struct hub_choice *out)
{
    struct str name = str_c(l->at[i].name);
    int part, count;

    *out = (struct hub_choice){ has_ending(name, ".gguf") ? HUB_GGUF : HUB_FOLDER, i };
    choose_set(l, i);
    if (has_ending(name, ".onnx")) {
        out->kind = HUB_ONNX;
        choose_onnx(l, i);
    } else if (has_ending(name, ".safetensors")) {
        choose_support(l);
    }
    if (out->kind != HUB_GGUF || !hub_name_is_part(name, &part, &count)) return;
    for (int k = 0; k < l->n; k++) /* the first part stands for all */
        if (is_same_set(name, str_c(l->at[k].name)) && hub_name_is_gguf(str_c(l->at[k].name)))
            out->head = k;
}

static int fail_missing(const struct hub_files *l, struct str file, struct err *e)
{
    struct buf names = { 0 };
    int rc;

    list_gguf(l, STR(""), &names);
    rc = err_set(e, E_NOTFOUND, "there is no file '%.*s'%s%s", STR_ARG(str_take(file, 200)),
                 names.n ? "; there are: " : "", buf_cstr(&names));
    if (names.failed) rc = err_nomem(e, "the names of model files");
    buf_release(&names);
    return rc;
}

static int choose_by_name(struct hub_files *l, struct str file, struct hub_choice *out,
                          struct err *e)
{
    int i = find_file(l, file), rc;

    if (i >= 0) {
        choose_named(l, i, out);
        return OK;
    }
    if ((rc = choose_gguf(l, file, out, e)) != OK) return rc;
    return out->kind == HUB_NONE ? fail_missing(l, file, e) : OK;
}

int hub_choose(struct hub_files *l, struct str file, struct hub_choice *out, struct err *e)
{
    bool has_config = find_file(l, STR("config.json")) >= 0, has_weights = false;
    int i, rc;

    *out = (struct hub_choice){ HUB_NONE, -1 };
    for (int k = 0; k < l->n; k++) l->at[k].chosen = false;
    if (file.p) return choose_by_name(l, file, out, e);
    for (int k = 0; k < l->n; k++) has_weights |= is_folder_weight(str_c(l->at[k].name));
    if (has_config && has_weights) {
        choose_folder(l);
        out->kind = HUB_FOLDER;
        return OK;
    }
    if ((rc = choose_gguf(l, str_of(NULL, 0), out, e)) != OK || out->kind == HUB_GGUF) return rc;
    if ((i = find_onnx(l)) >= 0 && has_config) {
        choose_onnx(l, i);
        out->kind = HUB_ONNX;
        return OK;
    }
    return err_set(e, E_UNSUPPORTED,
                   "there is no model that tern reads among its %d files: expected a GGUF file, or "
                   "config.json with .safetensors or .onnx files",
                   l->n);
}
