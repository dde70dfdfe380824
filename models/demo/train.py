"""Trains the tokenizer of the demo model: a small byte-level BPE with the pre-tokenizer and normalizer of Qwen2.

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3 && venv/bin/python train.py

Writes tokenizer.json beside itself; the same bytes every time. The text it learns from is generated here from
words.txt (most frequent first) by fixed seed, so nothing of anybody else's is in the result.
"""

import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = pathlib.Path(__file__).parent
VOCABULARY = 6144
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def words():
    lines = (HERE / "words.txt").read_text().splitlines()
    seen = {}
    for line in lines:
        if not line.startswith("#"):
            for word in line.split():
                seen.setdefault(word)
    return list(seen)


def inflected(word):
    """Regular forms of a word; what is not English does no harm, it only needs to look like it."""
    if len(word) < 4:
        return []
    if word.endswith("e"):
        return [word + "s", word + "d", word[:-1] + "ing", word + "r", word + "ly"]
    if word.endswith("y") and word[-2] not in "aeiou":
        return [word[:-1] + "ies", word[:-1] + "ied", word + "ing", word[:-1] + "ily"]
    return [word + "s", word + "ed", word + "ing", word + "ly", word + "er"]


def sentences(rng):
    base = words()
    weighted = [(word, 1000 / (rank + 12)) for rank, word in enumerate(base)]
    for rank, word in enumerate(base):
        weighted += [(form, 160 / (rank + 120)) for form in inflected(word)]
    vocabulary, weights = zip(*weighted)
    for _ in range(60_000):
        text = rng.choices(vocabulary, weights, k=rng.randint(4, 18))
        text[0] = text[0].capitalize()
        if rng.random() < 0.3:
            text[rng.randrange(len(text) - 1)] += ","
        yield " ".join(text) + rng.choice([".", ".", ".", "?", "!", ":", ".\n", ".\n\n"])
    for word in vocabulary:  # Every word, bare, capitalized and after a space, so that most are one token.
        yield f"{word} {word} {word.capitalize()}"


def code(rng):
    base = [word for word in words() if len(word) > 2]
    for _ in range(6_000):
        a, b, c = rng.choices(base, k=3)
        number = rng.randint(0, 9999)
        yield rng.choice([
            f"def {a}_{b}({c}, {b}):\n    return {c}.{a}({number})\n",
            f"fn {a}_{b}({c}: &str) -> Result<u32, Error> {{\n    let {b} = {c}.len();\n    Ok({b})\n}}\n",
            f'{{"{a}": "{b}", "{c}": {number}, "{b}": [true, false, null]}}\n',
            f"for (let i = 0; i < {a}.length; i++) {{\n\t{b}.push({c}[i]);\n}}\n",
            f"# {a.capitalize()} {b}\n\n- {c}: {number}\n- {b}\n",
            f"I don't {a}, it's {b}; we'll {c} and they've {a}, you're {b}.\n",
        ])


def main():
    rng = random.Random(20260101)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    byte_level = dict(add_prefix_space=False, trim_offsets=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
    ])
    tokenizer.post_processor = processors.ByteLevel(**byte_level)
    tokenizer.decoder = decoders.ByteLevel(**byte_level)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*sentences(rng), *code(rng)], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    path = HERE / "tokenizer.json"
    document = json.loads(tokenizer.to_str())
    # One vocabulary entry and one merge per line would be 400 KB of white space.
    path.write_text(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
