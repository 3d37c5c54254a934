/* A libllama program with a tiered cache: everything is libllama's own but the three lines marked with >>>.
 *
 *     embed_llama_c MODEL.gguf "a prompt"
 */
#include <stdio.h>
#include <string.h>

#include <ggml-backend.h>
#include <llama.h>
#include <tierkv/llama.h>

enum { MAX_PROMPT = 4096, REPLY = 32 };

static void quiet(enum ggml_log_level level, const char* text, void* user) { (void)level, (void)text, (void)user; }

int main(int argc, char** argv) {
  const char* prompt = argc > 2 ? argv[2] : "Once upon a time";
  if (argc < 2) return fprintf(stderr, "usage: %s MODEL.gguf [PROMPT]\n", argv[0]), 2;
  llama_log_set(quiet, NULL);
  ggml_backend_load_all();
  struct llama_model_params model_params = llama_model_default_params();
  model_params.n_gpu_layers = 0; /* the cache is in host memory */
  struct llama_model* model = llama_model_load_from_file(argv[1], model_params);
  if (model == NULL) return fprintf(stderr, "cannot load %s\n", argv[1]), 1;
  const struct llama_vocab* vocab = llama_model_get_vocab(model);

  /* [three] */
  struct llama_context_params params = llama_context_default_params();
  char error[256];
  tierkv_llama* kv = tierkv_llama_attach(&params, model, "balanced", error, sizeof error); /* >>> before the context is made */
  if (kv == NULL) return fprintf(stderr, "%s\n", error), 1;
  struct llama_context* ctx = llama_init_from_model(model, params);
  if (ctx == NULL) return 1;

  llama_token tokens[MAX_PROMPT];
  int32_t count = llama_tokenize(vocab, prompt, (int32_t)strlen(prompt), tokens, MAX_PROMPT, true, false);
  struct llama_sampler* sampler = llama_sampler_init_greedy();
  for (int written = 0; count > 0 && written < REPLY; ++written) {
    if (tierkv_llama_decode(kv, ctx, llama_batch_get_one(tokens, count)) != 0) { /* >>> instead of llama_decode(ctx, batch) */
      fprintf(stderr, "%s\n", tierkv_llama_error(kv));
      return 1;
    }
    tokens[0] = llama_sampler_sample(sampler, ctx, -1);
    count = 1;
    char piece[64];
    const int32_t size = llama_token_to_piece(vocab, tokens[0], piece, sizeof piece, 0, false);
    if (size > 0) printf("%.*s", (int)size, piece);
  }
  printf("\n%.2f MiB of keys and values\n", (double)tierkv_llama_bytes(kv) / (1 << 20));

  llama_sampler_free(sampler);
  llama_free(ctx);
  tierkv_llama_free(kv); /* >>> after the context */
  llama_model_free(model);
  /* [/three] */
  return 0;
}
