/* C border of the Rust crate verbund_text: tokenizers, chat templates, grammars. Only the C++ of src/text includes this.
 *
 * Ownership: handles are opaque and freed by their own vbt_*_free (null is allowed). A vbt_text or vbt_ids that a call fills is
 * owned by the caller and freed by vbt_text_free / vbt_ids_free. A vbt_view is borrowed: views passed in are not kept
 * after the call; a view handed out lives as long as its comment says.
 * Threads: tokenizer, template and grammar environment handles are immutable, any thread may use them at the same time.
 * A detokenizer or matcher belongs to one thread at a time.
 * Errors: 0 is success. Otherwise *error holds a sentence in UTF-8 (free it) and outputs are untouched. A Rust panic is caught and
 * returned as VBT_INTERNAL; nothing ever unwinds into C++. All text is UTF-8; text that is not is VBT_INVALID. */
#ifndef VERBUND_TEXT_H
#define VERBUND_TEXT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { VBT_OK = 0, VBT_INVALID = 1, VBT_INTERNAL = 2 };

typedef struct {
  const char* data;
  size_t size;
} vbt_view;
typedef struct {
  char* data;
  size_t size;
} vbt_text;
typedef struct {
  int32_t* data;
  size_t size;
} vbt_ids;

void vbt_text_free(vbt_text text);
void vbt_ids_free(vbt_ids ids);

/* ---- tokenizer ---- */
typedef struct vbt_tokenizer vbt_tokenizer;

/* Optional ids are -1 and optional flags -1 when absent. */
typedef struct {
  vbt_view model, pre;
  const vbt_view* tokens;
  size_t token_count;
  const int32_t* token_types;
  size_t token_type_count; /* 0, or token_count */
  const vbt_view* merges;
  size_t merge_count;
  const float* scores;
  size_t score_count; /* 0, or token_count */
  int32_t bos, eos, unknown;
  int32_t add_bos, add_eos, add_space_prefix;
} vbt_gguf;

int32_t vbt_tokenizer_from_json(vbt_view json, vbt_tokenizer** out, vbt_text* error);
int32_t vbt_tokenizer_from_gguf(const vbt_gguf* vocabulary, vbt_tokenizer** out, vbt_text* error);
void vbt_tokenizer_free(vbt_tokenizer* tokenizer);

int32_t vbt_tokenizer_encode(const vbt_tokenizer* tokenizer, vbt_view text, int32_t add_special, int32_t parse_special, vbt_ids* out,
                             vbt_text* error);
/* Text from outside that goes into a prompt among markers (special tokens and the like): vbt_tokenizer_guard puts the
 * character `guard`, which must not be in the text, into everything that spells a marker; vbt_tokenizer_encode_guarded then
 * takes only what nothing guards for markers, and drops the guards. */
int32_t vbt_tokenizer_guard(const vbt_tokenizer* tokenizer, vbt_view text, uint32_t guard, vbt_text* out, vbt_text* error);
int32_t vbt_tokenizer_encode_guarded(const vbt_tokenizer* tokenizer, vbt_view text, uint32_t guard, vbt_ids* out, vbt_text* error);
/* The exact bytes a token stands for; they may be part of a character. Empty: no such token. */
int32_t vbt_tokenizer_bytes_of(const vbt_tokenizer* tokenizer, int32_t id, vbt_text* out, vbt_text* error);
int32_t vbt_tokenizer_decode(const vbt_tokenizer* tokenizer, const int32_t* ids, size_t count, int32_t skip_special, vbt_text* out,
                             vbt_text* error);
size_t vbt_tokenizer_size(const vbt_tokenizer* tokenizer);
int32_t vbt_tokenizer_id_of(const vbt_tokenizer* tokenizer, vbt_view token); /* -1: no such token */
int32_t vbt_tokenizer_token_of(const vbt_tokenizer* tokenizer, int32_t id, vbt_text* out, vbt_text* error);
int32_t vbt_tokenizer_is_special(const vbt_tokenizer* tokenizer, int32_t id);
uint64_t vbt_tokenizer_bytes(const vbt_tokenizer* tokenizer);

/* ---- detokenizer; keeps the tokenizer alive by itself ---- */
typedef struct vbt_detokenizer vbt_detokenizer;

int32_t vbt_detokenizer_new(const vbt_tokenizer* tokenizer, int32_t skip_special, vbt_detokenizer** out, vbt_text* error);
void vbt_detokenizer_free(vbt_detokenizer* detokenizer);
/* *out is valid until the next call on this handle. */
int32_t vbt_detokenizer_push(vbt_detokenizer* detokenizer, int32_t id, vbt_view* out, vbt_text* error);
int32_t vbt_detokenizer_finish(vbt_detokenizer* detokenizer, vbt_view* out, vbt_text* error);

/* ---- chat template ---- */
typedef struct vbt_template vbt_template;

int32_t vbt_template_new(vbt_view source, vbt_template** out, vbt_text* error);
void vbt_template_free(vbt_template* chat_template);
/* variables: a JSON object, the template's context. */
int32_t vbt_template_render(const vbt_template* chat_template, vbt_view variables, vbt_text* out, vbt_text* error);

/* ---- grammar; the environment keeps the tokenizer alive by itself, a matcher its environment ---- */
typedef struct vbt_grammar vbt_grammar;
typedef struct vbt_matcher vbt_matcher;

enum { VBT_JSON_SCHEMA = 0, VBT_REGEX = 1, VBT_LARK = 2 };

int32_t vbt_grammar_new(const vbt_tokenizer* tokenizer, size_t vocabulary_size, const int32_t* eos, size_t eos_count, vbt_grammar** out,
                        vbt_text* error);
void vbt_grammar_free(vbt_grammar* grammar);
int32_t vbt_matcher_new(const vbt_grammar* grammar, int32_t kind, vbt_view source, vbt_matcher** out, vbt_text* error);
void vbt_matcher_free(vbt_matcher* matcher);
/* Writes word_count words; bit i of word w stands for token 32 * w + i. */
int32_t vbt_matcher_allowed(vbt_matcher* matcher, uint32_t* words, size_t word_count, vbt_text* error);
int32_t vbt_matcher_accept(vbt_matcher* matcher, int32_t id, vbt_text* error);
int32_t vbt_matcher_finished(const vbt_matcher* matcher);

#ifdef __cplusplus
}
#endif
#endif
