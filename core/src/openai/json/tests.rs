use super::*;
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn cut(text: &str) -> Option<Value> {
    Parser::new(text, true).value().unwrap()
}

fn list(text: &str) -> Vec<Value> {
    parse(text).unwrap().as_array().unwrap().to_vec()
}

#[test]
fn numbers_are_exact() {
    let numbers = list("[0, -0, 12, 9223372036854775808, -12345678901234567890, 2.0, 1e-07, 1E5, 1e999]");
    let big = |digits: &str| Number::Big(Arc::from(digits));
    let expected = [
        Number::Int(0),
        Number::Int(0),
        Number::Int(12),
        big("9223372036854775808"),
        big("-12345678901234567890"),
        Number::Float(2.0),
        Number::Float(1e-7),
        Number::Float(1e5),
        Number::Float(f64::INFINITY),
    ];
    assert_eq!(numbers, expected.map(Value::Number));
    assert!(matches!(list("[NaN]").first(), Some(Value::Number(Number::Float(nan))) if nan.is_nan()));
    for bad in ["01", "-", "+1", "1.", ".5", "1e", "0x10", "--1", "1e+", "1_000", "٣", &"9".repeat(4301)] {
        assert_eq!(parse(bad), Err(JsonError::Syntax), "{bad}");
    }
}

#[test]
fn strings_are_unescaped() {
    let text = r#""a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00 é😀 and a longer run of plain text""#;
    let expected = "a\"\\/\u{8}\u{c}\n\r\té😀 é😀 and a longer run of plain text";
    assert_eq!(parse(text), Ok(Value::from(expected)));
    for lone in [r#""\ud800""#, r#""\ud800x""#, r#""\udc00""#, r#""\ud800\u0041""#] {
        assert_eq!(parse(lone), Err(JsonError::LoneSurrogate), "{lone}");
    }
    for bad in ["\"\n\"", "\"a\u{1f}\"", r#""\x41""#, r#""\u12g4""#, r#""\u+123""#, "\"open", "'a'"] {
        assert_eq!(parse(bad), Err(JsonError::Syntax), "{bad:?}");
    }
}

#[test]
fn special_bytes_are_found_at_every_place() {
    for length in 0..40 {
        for special in ['"', '\\', '\u{0}', '\u{1f}'] {
            let text = format!("{}{special}{}", "é".repeat(length), "\u{7f}\u{80}\u{20ac}zzzzzzzzzzzzzzzz\"");
            assert_eq!(plain(text.as_bytes()), length * 2);
        }
        assert_eq!(plain("\u{7f}".repeat(length).as_bytes()), length);
    }
}

#[test]
fn structure_is_checked() {
    for bad in [
        "",
        " ",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\":1,}",
        "{\"a\"}",
        "{a:1}",
        "{\"a\":}",
        "[1",
        "tru",
        "[1]]",
        "{,}",
    ] {
        assert!(parse(bad).is_err(), "{bad}");
    }
    assert!(parse(" { \"a\" : [ 1 , { } , [ ] ] } \r\n").is_ok());
}

#[test]
fn deep_nesting_is_refused() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(parse(&nested(100)).is_ok());
    assert_eq!(parse(&nested(1000)), Err(JsonError::TooDeep));
    assert_eq!(Parser::new(&nested(100_000), false).skip(), Err(JsonError::TooDeep));
    assert_eq!(Parser::new(&"{\"a\":".repeat(1000), true).value(), Err(JsonError::TooDeep));
}

#[test]
fn a_cut_document_keeps_what_is_certain() {
    for (text, kept) in [
        (r#"["abc"#, r#"["abc"]"#),
        (r#"["abc\"#, r#"["abc"]"#),
        (r#"["abc\u00"#, r#"["abc"]"#),
        (r#"["abc\ud83d"#, r#"["abc"]"#),
        (r#"["abc\ud83d\ude"#, r#"["abc"]"#),
        (r#"["abc", 12"#, r#"["abc"]"#),
        (r#"["abc", 12 "#, r#"["abc", 12]"#),
        (r#"[tru"#, "[]"),
        (r#"{"a": 1, "b"#, r#"{"a": 1}"#),
        (r#"{"a": 1, "b":"#, r#"{"a": 1}"#),
        (r#"{"a": 1, "b": [1, {"c": "d"#, r#"{"a": 1, "b": [1, {"c": "d"}]}"#),
    ] {
        assert_eq!(cut(text), parse(kept).ok(), "{text}");
    }
    assert_eq!(cut(""), None);
    assert_eq!(Parser::new("[1 2", true).value(), Err(JsonError::Syntax));
}

#[test]
fn values_are_skipped_as_far_as_they_reach() {
    for value in ["1", "true", "\"a\\\"b]\"", "{\"a\": [1, \"}\", {}]}", "[]", "[[1], 2]"] {
        let text = format!(" {value} , 7");
        let mut parser = Parser::new(&text, false);
        parser.skip().unwrap();
        assert_eq!(text.get(parser.at..).unwrap().trim_start(), ", 7", "{value}");
    }
    for bad in ["", ",", "}", "[1", "\"a"] {
        assert_eq!(Parser::new(bad, false).skip(), Err(JsonError::Syntax), "{bad}");
    }
}
