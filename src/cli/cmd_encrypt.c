/* cmd_encrypt.c - tern encrypt and tern decrypt: a model's files one by one, into another file or
 * folder. The format is base/sealed.h's. */
#include "base/file.h"
#include "base/keyring.h"
#include "base/mem.h"
#include "base/sealed.h"
#include "cli/args.h"
#include "cli/cliio.h"
#include "cli/cmd.h"
#include "cli/progress.h"
#include "format/manifest.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static const struct verb encrypt_verb = {
    "encrypt",
    "tern encrypt IN OUT --key-file FILE | --key-command CMD",
    "Writes the model IN (a file, or all files of a folder) encrypted as OUT. tern loads it with\n"
    "--model-key-file or --model-key-command, and decrypts it into memory, never to a file. Each\n"
    "file is AES-256-GCM in chunks under a random key of its own, which your key encrypts: any\n"
    "changed, moved or missing byte is refused, and tern rekey changes keys without encrypting\n"
    "again. A key is 32 random bytes, or 64 hex digits; several lines are several keys, each of\n"
    "which opens the model. Without a key the model is lost: keep a copy of it. OUT gets a "
    "manifest.\n\n"
    "examples:\n"
    "  (umask 077; openssl rand -hex 32 >model.key)\n"
    "  tern encrypt llama-3.2-1b-q8_0.gguf sealed/llama-3.2-1b-q8_0.gguf --key-file model.key\n"
    "  tern encrypt Llama-3.2-1B/ sealed/Llama-3.2-1B/ --key-command 'vault kv get -field=key "
    "ai/1b'\n"
    "  tern run -m sealed/Llama-3.2-1B/ --model-key-file model.key -p Hello",
};

static const struct verb decrypt_verb = {
    "decrypt",
    "tern decrypt IN OUT --key-file FILE | --key-command CMD",
    "Writes the encrypted model IN (a file, or all files of a folder) as plain files OUT. Loading "
    "an\n"
    "encrypted model does not need this: see tern encrypt.\n\n"
    "examples:\n"
    "  tern decrypt sealed/llama-3.2-1b-q8_0.gguf llama-3.2-1b-q8_0.gguf --key-file model.key",
};

struct job {
    const struct verb *verb;
    const char *in, *out, *key_file, *key_command, *chunk;
    bool encrypts, quiet;
    struct keyset *keys;
    struct progress bar;
    const char *now; /* the file in progress */
    uint64_t bytes;
    size_t n_files;
};

static void on_progress(void *arg, uint64_t done, uint64_t total)
{
    struct job *j = arg;

    progress_show(&j->bar, done, total, j->now);
}

/* name: relative to the folder, or NULL for a lone file, which may be renamed. */
static int write_file(struct job *j, const char *from, const char *to, const char *name,
                      uint32_t chunk, struct err *e)
{
    struct sealed_opt opt = {
        .keys = j->keys, .name = name, .chunk_bytes = chunk, .progress = on_progress, .arg = j
    };
    struct stat st;
    int rc;

    j->now = path_base(from);
    rc = j->encrypts ? sealed_encrypt(from, to, &opt, e) : sealed_decrypt(from, to, &opt, e);
    if (rc != OK) return rc;
    j->n_files++;
    if (file_stat(to, &st)) j->bytes += (uint64_t)st.st_size;
    return OK;
}

/* Makes the folders on the way to the file. */
static int make_folders(const char *path, struct err *e)
{
    char *part = cli_need(mem_strdup(path));
    int rc = OK;

    for (char *at = part + 1; rc == OK && (at = strchr(at, '/')); at++) {
        *at = 0;
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            rc = err_set(e, E_IO, "%s: %s", part, strerror(errno));
        *at = '/';
    }
    mem_free(part);
    return rc;
}

static int write_one_of(struct job *j, const char *dir, const char *name, uint32_t chunk,
                        struct err *e)
{
    char *from = cli_need(path_join(dir, name)), *to = cli_need(path_join(j->out, name));
    int rc = make_folders(to, e);

    if (rc == OK) rc = write_file(j, from, to, name, chunk, e);
    mem_free(from);
    mem_free(to);
    return rc;
}

static int write_files(struct job *j, uint32_t chunk, struct err *e)
{
    struct manifest list = { 0 };
    char *dir = NULL;
    bool is_folder = false;
    int rc;

    if (!file_is_dir(j->in)) return write_file(j, j->in, j->out, NULL, chunk, e);
    rc = manifest_list(j->in, &list, &dir, &is_folder, e);
    for (size_t i = 0; i < list.n && rc == OK; i++)
        rc = write_one_of(j, dir, list.files[i].name, chunk, e);
    manifest_release(&list);
    mem_free(dir);
    return rc;
}

static void on_hashed(void *arg, uint64_t done, uint64_t total, const char *name)
{
    progress_show(arg, done, total, name);
}

static int write_model(struct job *j, uint32_t chunk, struct err *e)
{
    struct manifest_opt opt = { .progress = on_hashed, .arg = &j->bar };
    int rc = keyset_open(&j->keys, j->key_file, j->key_command, 0, e);

    if (rc != OK) return rc;
    if (!j->encrypts) keyset_join(j->keys);
    progress_begin(&j->bar, true, j->quiet);
    rc = write_files(j, chunk, e);
    if (rc == OK) rc = manifest_write(j->out, &opt, NULL, e);
    progress_end(&j->bar);
    keyset_close(j->keys);
    if (rc == OK)
        fprintf(stderr, "%s: %zu %s %s, %.1f MiB\n", j->out, j->n_files,
                j->n_files == 1 ? "file" : "files", j->encrypts ? "encrypted" : "decrypted",
                (double)j->bytes / (1 << 20));
    return rc;
}

static int check_flags(const struct job *j, int n_pos, uint32_t *chunk, struct err *e)
{
    uint64_t n = 0;

    if (n_pos != 2)
        return err_set(e, E_INVALID, "two arguments are needed: a model and the output");
    if (!j->key_file == !j->key_command)
        return err_set(e, E_INVALID, "one of --key-file and --key-command is needed");
    if (j->chunk && (!cmd_size(j->chunk, &n) || n < SEALED_CHUNK_MIN || n > SEALED_CHUNK_MAX))
        return err_set(e, E_INVALID, "--chunk %s: must be a size from %d to %d", j->chunk,
                       SEALED_CHUNK_MIN, SEALED_CHUNK_MAX);
    *chunk = (uint32_t)n;
    if (!file_is_dir(j->in) && file_is_dir(j->out))
        return err_set(e, E_INVALID, "%s is a folder; name the file to write", j->out);
    return OK;
}

static int run_job(struct job *j, int argc, char **argv)
{
    const struct arg table[] = {
        { "--key-file", "--model-key-file", ARG_STR, &j->key_file, "FILE",
          "file with the key: 64 hex digits per line, or 32 bytes" },
        { "--key-command", "--model-key-command", ARG_STR, &j->key_command, "CMD",
          "shell command that prints it instead" },
        { "--quiet", "-q", ARG_FLAG, &j->quiet, NULL, "no progress bar" },
        { j->encrypts ? "--chunk" : NULL, NULL, ARG_STR, &j->chunk, "SIZE",
          "bytes that are encrypted together, 4096 to 16M (1 MiB)" },
        { 0 },
    };
    const char *pos[2] = { 0 };
    struct err e = { 0 };
    uint32_t chunk = 0;
    bool helped = false;
    int n_pos = 0;

    if (args_parse(j->verb, table, argc, argv, pos, 2, &n_pos, &helped, &e) != OK)
        return cmd_usage(j->verb->name, &e);
    if (helped) return EXIT_OK;
    j->in = pos[0], j->out = pos[1];
    if (j->in && cmd_model(&j->in, &e) != OK) return cmd_fail(&e);
    if (check_flags(j, n_pos, &chunk, &e) != OK) return cmd_usage(j->verb->name, &e);
    return cmd_result(write_model(j, chunk, &e), &e);
}

int cmd_encrypt(int argc, char **argv)
{
    return run_job(&(struct job){ .verb = &encrypt_verb, .encrypts = true }, argc, argv);
}

int cmd_decrypt(int argc, char **argv)
{
    return run_job(&(struct job){ .verb = &decrypt_verb }, argc, argv);
}
