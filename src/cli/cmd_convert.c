/* cmd_convert.c - tern convert: a Hugging Face folder to GGUF, and back. The work is src/convert;
 * here are the flags, the progress bar and the report. */
#include "base/file.h"
#include "base/jsonw.h"
#include "base/mem.h"
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/guard.h"
#include "cli/progress.h"
#include "convert/togguf.h"
#include "convert/tohf.h"
#include "format/manifest.h"

#include <string.h>

#define DEFAULT_SHARD_BYTES 5000000000u

static const struct verb verb = {
    "convert",
    "tern convert FOLDER FILE.gguf | FILE.gguf FOLDER   [--type F32|F16|BF16|Q8_0]",
    "Converts a Hugging Face folder (config.json, *.safetensors, tokenizer.json) to a GGUF file\n"
    "with tokenizer, chat template and sampling settings inside, or a GGUF file to such a folder.\n"
    "To a folder, values keep their type; quantized ones become F16 unless --type names another.\n"
    "Converting there and back gives the same bytes where the types allow it. Files appear when\n"
    "they are complete and are read back. Sizes and SHA-256 sums are written beside the model\n"
    "(FILE.gguf.sha256, or SHA256SUMS in the folder), for tern verify and sha256sum -c.\n\n"
    "examples:\n"
    "  tern convert Llama-3.2-1B/ llama-3.2-1b-q8_0.gguf --type Q8_0\n"
    "  tern convert llama-3.2-1b-q8_0.gguf Llama-3.2-1B-again/ --type BF16 --shard-size 2G",
};

struct convert_flags {
    const char *src, *dst, *type, *shard;
    int threads;
    bool json, resume, bare, quiet;
};

struct convert_report {
    int n_tensors;
    size_t n_files;
    uint64_t bytes;
    double seconds;
    char sum[CRYPTO_HEX]; /* SHA-256 of the file, or of the folder's SHA256SUMS */
    bool no_tokenizer;
};

static void on_progress(void *arg, uint64_t done, uint64_t total, const char *name)
{
    progress_show(arg, done, total, name);
}

static int write_manifest(const struct convert_flags *f, struct convert_report *r, struct err *e)
{
    struct progress bar;
    struct manifest_opt opt = { .n_threads = f->threads, .progress = on_progress, .arg = &bar };
    struct manifest_result m = { 0 };
    int rc;

    progress_begin(&bar, true, f->quiet);
    rc = manifest_write(f->dst, &opt, &m, e);
    progress_end(&bar);
    memcpy(r->sum, m.sum, sizeof r->sum);
    return rc;
}

static int convert_to_gguf(const struct convert_flags *f, enum dtype type, struct convert_report *r,
                           struct err *e)
{
    struct progress bar;
    struct togguf_opt opt = { .src = f->src,
                              .dst = f->dst,
                              .type = type,
                              .keep = !f->type,
                              .n_threads = f->threads,
                              .bare = f->bare,
                              .progress = on_progress,
                              .progress_arg = &bar };
    struct togguf_result out;
    int rc;

    progress_begin(&bar, true, f->quiet);
    rc = togguf_run(&opt, &out, e);
    progress_end(&bar);
    *r = (struct convert_report){
        .n_tensors = out.n_tensors, .bytes = out.bytes, .seconds = out.seconds, .n_files = 1
    };
    return rc == OK ? write_manifest(f, r, e) : rc;
}

static int convert_to_folder(const struct convert_flags *f, enum dtype type, uint64_t shard_bytes,
                             struct convert_report *r, struct err *e)
{
    struct progress bar;
    struct tohf_opt opt = { .src = f->src,
                            .dst = f->dst,
                            .type = type,
                            .shard_bytes = shard_bytes,
                            .n_threads = f->threads,
                            .resume = f->resume,
                            .progress = on_progress,
                            .progress_arg = &bar };
    struct tohf_result out;
    int rc;

    progress_begin(&bar, true, f->quiet);
    rc = tohf_run(&opt, &out, e);
    progress_end(&bar);
    *r = (struct convert_report){ .n_tensors = out.n_tensors,
                                  .bytes = out.bytes,
                                  .seconds = out.seconds,
                                  .n_files = out.n_files,
                                  .no_tokenizer = out.no_tokenizer };
    return rc == OK ? write_manifest(f, r, e) : rc;
}

/* The direction decides the default type and which types are allowed. */
static int check_flags(const struct convert_flags *f, int n_pos, bool from_gguf, enum dtype *type,
                       uint64_t *shard_bytes, struct err *e)
{
    *type = f->type ? dtype_by_name(str_c(f->type)) : from_gguf ? DT_NONE : DT_Q8_0;
    *shard_bytes = DEFAULT_SHARD_BYTES;
    if (n_pos != 2)
        return err_set(e, E_INVALID,
                       "two arguments are needed: a folder and the GGUF file to write, or a GGUF "
                       "file and the folder to write");
    if (f->type && *type != DT_F32 && *type != DT_F16 && *type != DT_BF16 &&
        (*type != DT_Q8_0 || from_gguf))
        return err_set(e, E_INVALID, "--type %s: must be F32, F16%s", f->type,
                       from_gguf ? " or BF16" : ", BF16 or Q8_0");
    if (f->shard && !cmd_size(f->shard, shard_bytes))
        return err_set(e, E_INVALID, "--shard-size %s: must be a size such as 2G or 500M",
                       f->shard);
    if (!from_gguf && file_is_dir(f->dst))
        return err_set(e, E_INVALID, "%s is a folder; name the GGUF file to write", f->dst);
    if (from_gguf && str_ends(str_c(f->dst), STR(".gguf")))
        return err_set(e, E_INVALID,
                       "%s is already a GGUF file; use tern quantize to change its types", f->src);
    return OK;
}

static void add_json(struct buf *out, const struct convert_flags *f, const struct convert_report *r,
                     const char *type)
{
    struct jsonw w = { .out = out };

    jsonw_obj(&w);
    jsonw_key(&w, "path"), jsonw_str(&w, str_c(f->dst));
    jsonw_key(&w, "type"), jsonw_str(&w, str_c(type));
    jsonw_key(&w, "tensors"), jsonw_int(&w, r->n_tensors);
    jsonw_key(&w, "files"), jsonw_int(&w, (int64_t)r->n_files);
    jsonw_key(&w, "bytes"), jsonw_int(&w, (int64_t)r->bytes);
    jsonw_key(&w, "seconds"), jsonw_num(&w, r->seconds);
    jsonw_key(&w, "sha256"), jsonw_str(&w, str_c(r->sum));
    jsonw_end(&w);
    buf_putc(out, '\n');
}

static int print_report(const struct convert_flags *f, const struct convert_report *r,
                        const char *type, struct err *e)
{
    struct buf out = { 0 };
    int rc;

    if (r->no_tokenizer)
        fprintf(stderr, "tern: warning: this kind of tokenizer has no tokenizer.json form; the "
                        "folder has no tokenizer\n");
    if (f->json) add_json(&out, f, r, type);
    else
        buf_printf(&out, "%s: %d tensors, %.1f MiB of weights, %s, %.1f s, verified\nsha256 %s%s\n",
                   f->dst, r->n_tensors, (double)r->bytes / 1048576, type, r->seconds, r->sum,
                   file_is_dir(f->dst) ? " (of SHA256SUMS)" : "");
    rc = cli_write(f->json ? stdout : stderr, &out, e);
    buf_release(&out);
    return rc;
}

/* By content: a GGUF file may have any name. */
static bool is_gguf(const char *path)
{
    struct filemap m = { 0 };
    bool is = !file_is_dir(path) && filemap_open_head(&m, path, 4, NULL) == OK && m.n >= 4 &&
              memcmp(m.p, "GGUF", 4) == 0;

    filemap_release(&m);
    return is;
}

int cmd_convert(int argc, char **argv)
{
    struct convert_flags f = { 0 };
    struct convert_report r = { 0 };
    struct guard guard = { 0 };
    const char *pos[2] = { 0 };
    bool helped, from_gguf;
    const struct arg table[] = {
        { "--type", NULL, ARG_STR, &f.type, "T",
          "type of the matrices: F32, F16, BF16, Q8_0 (to GGUF: Q8_0)" },
        { "--shard-size", NULL, ARG_STR, &f.shard, "SIZE",
          "to a folder: largest .safetensors file (5G)" },
        { "--resume", NULL, ARG_FLAG, &f.resume, NULL,
          "to a folder: keep complete shards of an earlier run" },
        { "--bare", NULL, ARG_FLAG, &f.bare, NULL,
          "to GGUF: leave out the copies of config.json and tokenizer.json that only tern reads" },
        GUARD_KEY_ARGS(&guard),
        { "--threads", "-t", ARG_INT, &f.threads, "N", "threads (physical cores)" },
        { "--json", NULL, ARG_FLAG, &f.json, NULL, "print the result as one JSON line" },
        { "--quiet", "-q", ARG_FLAG, &f.quiet, NULL, "no progress bar" },
        { 0 },
    };
    struct err e = { 0 };
    enum dtype type;
    uint64_t shard;
    int n_pos, rc;

    if (args_parse(&verb, table, argc, argv, pos, 2, &n_pos, &helped, &e) != OK)
        return cmd_usage("convert", &e);
    if (helped) return EXIT_OK;
    f.src = pos[0], f.dst = pos[1];
    if (n_pos > 0 && cmd_model(&f.src, &e) != OK) return cmd_fail(&e);
    if (guard_join(&guard, &e) != OK) return cmd_fail(&e);
    from_gguf = n_pos > 0 && is_gguf(f.src);
    if (check_flags(&f, n_pos, from_gguf, &type, &shard, &e) != OK) return cmd_usage("convert", &e);
    rc = from_gguf ? convert_to_folder(&f, type, shard, &r, &e) : convert_to_gguf(&f, type, &r, &e);
    guard_release(&guard);
    if (rc == OK)
        rc = print_report(&f, &r, type == DT_NONE ? "types unchanged" : dtype_name((int)type), &e);
    return cmd_result(rc, &e);
}
