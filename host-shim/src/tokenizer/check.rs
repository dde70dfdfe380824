//! The compiler's last step: the artifact against the reference on a built-in corpus.

use super::CompileError;
use super::source::Source;
use inference_cache_core::tokenize::Tokenizer;

/// Whole texts; each is also cut to pieces and mixed with the model's added tokens.
const TEXTS: &[&str] = &[
    "",
    "The quick brown fox can't jump over 12,345 lazy dogs; it's what they'd say, isn't it? WE'LL SEE!",
    "fn main() {\n\tlet x: Vec<u32> = (0..10).map(|i| i * 2).collect();\r\n    println!(\"{x:?}\");\n}\n\n\n",
    "{\"role\": \"user\", \"content\": [1, 2.5e-7, true, null], \"名\": \"値\\n\"}",
    "你好,世界!今天天气怎么样?我们去公园散步吧。價格是３０元。",
    "これは日本語のテキストです。カタカナと漢字、ｶﾀｶﾅも。が か\u{3099} は\u{309a}",
    "한국어 텍스트입니다. \u{1112}\u{1161}\u{11ab}\u{1100}\u{1173}\u{11af} 가\u{11a8}",
    "Быстрая лиса прыгает через ленивую собаку. Ёлка е\u{308} и\u{306}",
    "Größe, naïve café, Å ångström A\u{30a} e\u{301}\u{323} \u{1e9b}\u{323} ﬁ ² Ⅷ ½",
    "मुझे हिन्दी आती है। क\u{93c} \u{958} বাংলা கொ \u{bc6}\u{bbe} ไทยน้ำ שָׁלוֹם العَرَبِيَّة १२३ ٣٤",
    "😀🤖👩‍👩‍👧‍👦 👍🏽 ❤\u{fe0f} 🇩🇪🏴 ‍ a\u{200b}b \u{feff}",
    "  leading,   inner\u{a0}\u{3000}and \t trailing  \n\n  \r\n\r\n \t ",
    "'s 'S 'ſ 'T're'RE've'VE'm'll'LL'd'D'x ''s \u{2019}s",
    "=\u{338} <\u{338} \u{301}start \u{0}\u{1b}\u{7f} \u{fffd} \u{e000} \u{10ffff} \u{1d15e} \u{2f800} \u{fb1d}",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "================================================================================ --------- ////// \\\\\\\\",
];

pub(super) fn check(source: &Source, artifact: Vec<u8>) -> Result<(), CompileError> {
    let tokenizer = Tokenizer::load(artifact)?;
    let reference = tokenizers::Tokenizer::from_bytes(&source.tokenizer_json)
        .map_err(|error| CompileError::Reference(error.to_string()))?;
    for text in corpus(source) {
        let expected = reference
            .encode_fast(text.as_str(), true)
            .map_err(|error| CompileError::Reference(error.to_string()))?;
        let mut tokens = Vec::new();
        let encoded = tokenizer.encode(&text, true).fill(&mut tokens, usize::MAX);
        if encoded != Ok(false) || tokens != expected.get_ids() {
            return Err(CompileError::Differs { text: text.chars().take(200).collect() });
        }
    }
    Ok(())
}

fn corpus(source: &Source) -> Vec<String> {
    let mut texts: Vec<String> = TEXTS.iter().map(|text| (*text).to_owned()).collect();
    texts.push(TEXTS.concat());
    texts.push(TEXTS.concat().repeat(20));
    for window in [3, 7, 40] {
        for text in TEXTS {
            let characters: Vec<char> = text.chars().collect();
            texts.extend(characters.chunks(window).map(|part| part.iter().collect::<String>()));
        }
    }
    // Around every added token: text, white space, marks, itself, its neighbours and parts of itself.
    let contents: Vec<&str> = source.added.iter().map(|token| token.content.as_str()).collect();
    for (index, token) in contents.iter().enumerate() {
        let other = contents[(index + 1) % contents.len()];
        let part: String = token.chars().skip(1).collect();
        texts.push((*token).to_owned());
        texts.push(format!(
            "a{token}\n{token}{token} e\u{301}{other}\u{301} {token}{part}{other}'s  {part} {token}"
        ));
    }
    // Every code point below U+30000, between letters and digits.
    let blocks = (0..0x3_0000u32).step_by(96);
    texts.extend(blocks.map(|block| {
        (block..block + 96)
            .filter_map(char::from_u32)
            .flat_map(|character| ['a', character, '1', character])
            .collect()
    }));
    texts
}
