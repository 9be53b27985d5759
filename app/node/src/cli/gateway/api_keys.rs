//! The file of `--api-keys`.
//!
//! ```toml
//! [[key]]
//! name = "app"                  # in logs and in the store
//! sha256 = "2cf2…"              # of the key's text, in hex; or text = "sk-…"
//! models = ["m1"]               # left out: all
//! token-budget = 1000000        # left out: no limit, as of the rest
//! requests-per-minute = 600
//! concurrent = 32
//! ```

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use holdfast_gateway::openai::KeyConfig;
use serde::Deserialize;

use super::super::error::fail;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    key: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Row {
    name: String,
    sha256: Option<String>,
    text: Option<String>,
    models: Option<BTreeSet<String>>,
    token_budget: Option<u64>,
    requests_per_minute: Option<u32>,
    concurrent: Option<u32>,
}

/// The keys of the file; at least one.
pub(super) fn read(path: &Path) -> Result<Vec<KeyConfig>> {
    let text = std::fs::read_to_string(path).map_err(|e| super::unreadable("--api-keys", path, &e))?;
    parse(&text).map_err(|problem| fail(12, "--api-keys", format!("{}: {problem}", path.display())))
}

fn parse(text: &str) -> Result<Vec<KeyConfig>, String> {
    // Its own message would show the line, and with it a key.
    let file: File = toml::from_str(text).map_err(|e| {
        let line =
            e.span().map_or(0, |span| text.get(..span.start).unwrap_or_default().matches('\n').count() + 1);
        match e.message() {
            message if message.contains("expected a sequence") => {
                format!("line {line}: write [[key]], in two pairs of brackets, above each key")
            }
            message => format!("line {line}: {message}"),
        }
    })?;
    if file.key.is_empty() {
        return Err("it has no [[key]]; leave the flag out for an open API".to_owned());
    }
    let keys: Vec<KeyConfig> = file.key.into_iter().map(key).collect::<Result<_, _>>()?;
    // Before anything is paid: the API would refuse them only once an escrow is there.
    let (mut names, mut texts) = (BTreeSet::new(), BTreeSet::new());
    match keys.iter().find(|key| !names.insert(&key.name) || !texts.insert(key.sha256)) {
        Some(twice) => Err(format!("key {:?}: its name or its text is that of another key", twice.name)),
        None => Ok(keys),
    }
}

fn key(row: Row) -> Result<KeyConfig, String> {
    let Row { name, sha256, text, models, token_budget, requests_per_minute, concurrent } = row;
    let config = match (sha256, text) {
        (Some(hash), None) => {
            let bytes = hex::decode(hash).ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
            let sha256 = bytes.ok_or_else(|| format!("key {name:?}: sha256 must be 64 hex digits"))?;
            KeyConfig { sha256, ..KeyConfig::new(name, "") }
        }
        (None, Some(text)) if text.len() >= 8 => KeyConfig::new(name, &text),
        (None, Some(_)) => return Err(format!("key {name:?}: text must have at least 8 bytes")),
        _ => return Err(format!("key {name:?}: give sha256 or text, one of them")),
    };
    Ok(KeyConfig { models, token_budget, requests_per_minute, concurrent, ..config })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_known_by_its_hash_or_its_text() {
        let keys = parse(
            "[[key]]\nname = 'a'\ntext = 'sk-12345678'\nmodels = ['m1']\ntoken-budget = 5\n\
             [[key]]\nname = 'b'\nsha256 = '2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824'\nconcurrent = 2\n",
        )
        .unwrap();
        assert_eq!(keys[0].sha256, KeyConfig::new("x", "sk-12345678").sha256);
        assert_eq!((keys[0].token_budget, keys[0].models.as_ref().map(BTreeSet::len)), (Some(5), Some(1)));
        // SHA-256 of "hello".
        assert_eq!(keys[1].sha256, KeyConfig::new("x", "hello").sha256);
        assert_eq!((keys[1].concurrent, &keys[1].models), (Some(2), &None));
    }

    #[test]
    fn a_bad_file_is_refused_without_showing_a_key() {
        for (text, wanted) in [
            ("", "missing field"),
            ("key = []", "no [[key]]"),
            ("[key]\nname = 'a'\ntext = 'sk-secret-1'", "line 1: write [[key]]"),
            ("[[key]]\nname = 'a'", "sha256 or text"),
            ("[[key]]\nname = 'a'\nsha256 = '00'", "64 hex digits"),
            ("[[key]]\nname = 'a'\ntext = 'short'", "8 bytes"),
            ("[[key]]\nname = 'a'\ntext = 'sk-secret-1'\nbudget = 5", "unknown field"),
            ("[[key]]\nname = 'a'\ntext = 'sk-secret-1", "line 3"),
            (
                "[[key]]\nname = 'a'\ntext = 'sk-secret-1'\n[[key]]\nname = 'a'\ntext = 'sk-secret-2'",
                "another key",
            ),
            (
                "[[key]]\nname = 'a'\ntext = 'sk-secret-1'\n[[key]]\nname = 'b'\ntext = 'sk-secret-1'",
                "another key",
            ),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(wanted), "{text:?}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
