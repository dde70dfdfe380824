"""Makes corpus.jsonl (texts of our own and generated ones) and digests.json (ids of the reference tokenizer).

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3
    venv/bin/python make.py TOKENIZERS      # TOKENIZERS/qwen3/tokenizer.json, TOKENIZERS/qwen2_5/tokenizer.json

The same bytes every time. A digest is the first 16 hex digits of the SHA-256 of a document's ids as u32 LE, encoded
without special tokens. One array element per line of corpus.jsonl.
"""

import base64
import hashlib
import json
import pathlib
import random
import struct
import sys
import unicodedata

import tokenizers

HERE = pathlib.Path(__file__).parent
DEMO = HERE.parent.parent / "models" / "demo"

TEXTS = {
    "en": "The gateway keeps a small index of what every engine still holds in memory. When a request arrives, it's "
    "rendered, tokenized and hashed; then we'll look for the longest prefix that somebody has already computed. "
    "They've measured 1,024 requests: 97.3% hit, 2.7% didn't. \"Isn't that enough?\" she asked -- nobody answered.\n\n"
    "1. Read the prompt\n2. Cut it into blocks (16 tokens each)\n   a) hash them\n   b) compare\n",
    "code": "def lookup(self, chain: list[int], *, limit=128) -> dict[str, int]:\n    \"\"\"Longest run.\"\"\"\n"
    "    held = {}\n    for depth, block in enumerate(chain[:limit]):\n        if block not in self._index:\n"
    "            break\n        held |= {r: depth + 1 for r in self._index[block]}\n    return held\n\n\n"
    "impl<'a> Iterator for Cut<'a> {\n\ttype Item = &'a str;\n\tfn next(&mut self) -> Option<&'a str> { /* ... */ }\n}\n"
    "SELECT id, COUNT(*) FROM t WHERE x >= 0x1F AND y != 'it''s' GROUP BY 1; -- done\r\n#include <stdio.h>\r\n",
    "zh": "网关在内存中保存一个小索引,记录每个推理引擎仍然缓存的前缀。请求到达时,先渲染模板,再分词并计算哈希,"
    "然后选择最合适的副本。第3步:比较16个词元的块!“真的够快吗?”她问道。價格是１２３元,共計４５％。",
    "ja": "ゲートウェイは、各エンジンがまだ保持しているプレフィックスの小さな索引を持っています。リクエストが届くと、"
    "テンプレートを描画し、トークンに分割してハッシュを計算します。「本当に速いの？」と彼女は聞いた。ｶﾀｶﾅと１２３。",
    "ko": "게이트웨이는 각 엔진이 아직 가지고 있는 접두사의 작은 색인을 보관합니다. 요청이 오면 템플릿을 적용하고 "
    "토큰으로 나눈 뒤 해시를 계산합니다. 정말 빠른가요? 네, 3배 빠릅니다!",
    "ru": "Шлюз хранит небольшой индекс того, что каждый движок ещё держит в памяти. Когда приходит запрос, мы "
    "подставляем шаблон, разбиваем текст на токены и считаем хеши. «Разве это быстро?» — спросила она. Ёж, йод, №5.",
    "de": "Das Gateway führt ein kleines Verzeichnis darüber, was jede Maschine noch im Speicher hält. Kommt eine Anfrage, "
    "wird die Vorlage gefüllt, der Text zerlegt und gehasht. „Ist das größer, schöner, übler?“, fragte sie. Straße 12.",
    "fr": "La passerelle garde un petit index de ce que chaque moteur tient encore en mémoire. À l'arrivée d'une requête, "
    "on remplit le modèle, on découpe le texte : « C'est déjà assez rapide ? » demanda-t-elle. Ça coûte 3 €, naïf cœur.",
    "ar": "تحتفظ البوابة بفهرس صغير لما لا يزال كل محرك يحمله في الذاكرة. هل هذا سريع؟ نعم، ثلاث مرات ٣٫٥ أسرع. مَرْحَبًا",
    "hi": "गेटवे हर इंजन की स्मृति का एक छोटा सूचकांक रखता है। क्या यह तेज़ है? हाँ, ३ गुना तेज़! क़लम और ज़मीन।",
    "he": "השער שומר אינדקס קטן של מה שכל מנוע עדיין מחזיק בזיכרון. שָׁלוֹם עֲלֵיכֶם, 7 פעמים!",
    "th": "เกตเวย์เก็บดัชนีขนาดเล็กของสิ่งที่แต่ละเครื่องยังจำได้ เร็วพอไหม? น้ำ ๓ ครั้ง",
    "vi": "Cổng giữ một chỉ mục nhỏ về những gì mỗi máy còn nhớ. Có đủ nhanh không? Ừ, nhanh gấp ba lần, thưa bà Nguyễn.",
    "el": "Η πύλη κρατά ένα μικρό ευρετήριο. Είναι αρκετά γρήγορο; Ναι, τρεις φορές! ΆΈΉΊΌΎΏ ᾳ ᾧ",
}
SPECIAL = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<|fim_prefix|>",
    "<|vision_pad|>", "<tool_response>", "<|im_start|", "<|im_<|im_end|>", "<|", "|>", "<s>", "[INST]", "▁", "\n\n\n",
]
SPACES = [" ", "\t", "\n", "\r", "\r\n", "\u00a0", "\u3000", "\u2028", "\x0b", "\x0c", "\u0085", "\u200a", "\u1680",
          "\ufeff", "\u180e", "\u200b"]
GRAMMAR = ["'", "s", "S", "ſ", "t", "re", "LL", " ", "  ", "\n", "\r", "/", ".", "!", "A", "b", "é", "1", "23", "中",
           "\u0301", "ª", "\t", "<", "|", ">", "_", "-", "▁", "\u00a0", "ー", "ǅ", "\u093c", "क", "가", "ᅡ", "ᆨ", "=", "\u0338"]
EMOJI = list("😀🤖👍🏽✊🏿❤\ufe0f\u200d🇩🇪🏴👩💻") + ["hi", " ", "①", "½", "²", "Ⅷ", "ʰ", "٣", "१२", "𝟘", "ß", "İ", "Å", "日本"]


def documents(rng):
    texts = list(TEXTS.values())

    def piece(longest):
        text = rng.choice(texts)
        start = rng.randrange(len(text))
        return text[start:start + rng.randint(1, longest)]

    yield "empty", ""
    for name, text in TEXTS.items():
        yield name, text
        yield name, "".join(piece(120) for _ in range(12))
        yield "nfd", unicodedata.normalize("NFD", text)
        yield "nfkd", unicodedata.normalize("NFKD", text)
    for token in SPECIAL:
        yield "special", token
        yield "special", f" {token} {token}{token}"
    for _ in range(40):
        yield "special", "".join(rng.choice([rng.choice(SPECIAL), piece(20), " "]) for _ in range(rng.randint(2, 12)))
    for _ in range(40):
        yield "spaces", "".join(
            rng.choice([rng.choice(SPACES) * rng.randint(1, 30), rng.choice(["a", "Foo", "7", ".", "中", "'s"])])
            for _ in range(rng.randint(1, 12)))
    for _ in range(100):
        yield "grammar", "".join(rng.choice(GRAMMAR) for _ in range(rng.randint(1, 40)))
    for _ in range(40):
        yield "emoji", "".join(rng.choice(EMOJI) for _ in range(rng.randint(1, 40)))
    for top in (0x250, 0x3400, 0x20000, 0x110000) * 20:
        points = (rng.randrange(top) for _ in range(rng.randint(1, 40)))
        yield "random", "".join(chr(point) for point in points if not 0xD800 <= point <= 0xDFFF)
    for unit, times in (("a", 300), ("ab", 200), ("=", 500), ("0123456789", 40), ("中", 200), (" ", 1000), ("\n", 700),
                        ("\u0301", 300), ("e\u0301", 200), ("ा", 100), ("🏳\ufe0f\u200d🌈", 30), ("AbCd", 100)):
        yield "long", unit * times
    yield "long", "a" + " " * 900 + "b"
    yield "long", "".join(rng.choice("ACGT") for _ in range(1500))
    yield "long", base64.b64encode(rng.randbytes(900)).decode()
    for indent in (None, 2):
        for ascii_only in (True, False):
            body = {"messages": [{"role": "user", "content": piece(300)}], "n": 0.5, "stop": None}
            yield "json", json.dumps(body, ensure_ascii=ascii_only, indent=indent)


def digest(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return hashlib.sha256(struct.pack(f"<{len(ids)}I", *ids)).hexdigest()[:16]


def main():
    corpus = list(documents(random.Random(20260101)))
    with (HERE / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for category, text in corpus:
            # ASCII only: the file must survive every editor and checkout as it is.
            file.write(json.dumps({"category": category, "text": text}) + "\n")
    paths = {"demo": DEMO} | {name: pathlib.Path(sys.argv[1]) / name for name in ("qwen3", "qwen2_5")}
    digests = {"generator": f"tokenizers {tokenizers.__version__} (Python)"}
    for name, folder in paths.items():
        path = folder / "tokenizer.json"
        tokenizer = tokenizers.Tokenizer.from_file(str(path))
        digests[name] = {
            "tokenizer_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "documents": [digest(tokenizer, text) for _, text in corpus],
        }
    (HERE / "digests.json").write_text(json.dumps(digests, indent=1) + "\n")
    print(len(corpus), "documents")


if __name__ == "__main__":
    main()
