use super::*;
use crate::shard::exp_f32;

const PROMPT: [u32; 4] = [7, 3, 9, 1];
const TOKENS: [u32; 14] = [8, 185, 33, 96, 154, 45, 82, 93, 33, 96, 154, 45, 82, 93];

fn sha(values: &[f32]) -> String {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    hex::encode(Sha256::digest(bytes))
}

fn model(layers: (u32, u32)) -> ReferenceModel {
    ReferenceModel::new(DEFAULT_SEED, layers).unwrap()
}

/// Runs chunk after chunk through shards cut at `cuts`; gives each chunk's token, logits and the KV of all layers.
fn run(cuts: &[(u32, u32)], chunks: &[&[u32]]) -> (Vec<(u32, Vec<f32>)>, Digest) {
    let shards: Vec<ReferenceModel> = cuts.iter().map(|cut| model(*cut)).collect();
    let mut kvs: Vec<ReferenceKv> = shards.iter().map(|shard| shard.new_kv(512)).collect();
    let mut outs = Vec::new();
    let mut position = 0;
    for chunk in chunks {
        let mut out = None;
        for (shard, kv) in shards.iter().zip(&mut kvs) {
            let hidden: Vec<f32>;
            let input = match out {
                None => Input::Tokens(chunk),
                Some(Output::Hidden(rows)) => {
                    hidden = rows;
                    Input::Hidden(&hidden)
                }
                Some(other) => panic!("{other:?} before the last shard"),
            };
            out = Some(shard.forward(kv, position, input, Sampling::GREEDY).unwrap());
        }
        let Some(Output::Token { token, logits }) = out else { panic!("no token") };
        outs.push((token, logits));
        position += chunk.len() as u32;
    }
    let all = ReferenceKv {
        rows: position as usize,
        max_rows: 512,
        layers: kvs.into_iter().flat_map(|kv| kv.layers).collect(),
    };
    (outs, all.digest())
}

#[test]
fn weights_tables_and_exp_have_their_golden_bits() {
    let weights = Weights::new(13);
    assert_eq!(
        hex::encode(weights.digest),
        "c09dea57aeb8a28b12a9dc8403c850a6edb1605ebf1113237dbf02e8c458c163"
    );
    assert_eq!([0, 1, 2].map(|i| weights.embed[i].to_bits()), [0xbed1_7518, 0xbee7_c730, 0xbf7e_5778]);
    assert_eq!(exp_f32(-1.0).to_bits(), 0x3ebc_5ab2);
    assert_eq!(exp_f32(-20.5).to_bits(), 0x30ab_d1d8);
    let table: Vec<f32> = rope_table().into_iter().flatten().flatten().collect();
    assert_eq!(sha(&table), "1e29a640bf3ed868b706846382823f3b25bf8e794ec96485bacfac75818d9691");
}

#[test]
fn the_golden_prompt_gives_the_golden_tokens_logits_and_kv() {
    let fed: Vec<[u32; 1]> = TOKENS[..7].iter().map(|token| [*token]).collect();
    let mut chunks: Vec<&[u32]> = vec![&PROMPT];
    chunks.extend(fed.iter().map(|token| &token[..]));
    let (outs, kv) = run(&[(0, 4)], &chunks);
    let tokens: Vec<u32> = outs.iter().map(|(token, _)| *token).collect();
    assert_eq!(tokens, TOKENS[..8]);
    assert_eq!(sha(&outs[0].1), "045d1b9a5a655b6308fbfe8211148f376d14cfd059fdbaf2c7f0b945f9b3c2ae");
    assert_eq!(sha(&outs[7].1), "8c52c842185eb07aed8eb3e5f5b9654196451d4e6406c6610a5f2e2f2b1974f1");
    assert_eq!(hex::encode(kv), "f99261eb0c600bfbb36e1efbe1a01175d314407f7b03373470879e6a4c641122");
}

#[test]
fn the_golden_prompt_crosses_the_cut_at_two_with_golden_rows() {
    let first = model((0, 2));
    let mut kv = first.new_kv(4);
    let out = first.forward(&mut kv, 0, Input::Tokens(&PROMPT), Sampling::GREEDY).unwrap();
    let Output::Hidden(rows) = out else { panic!("a token before the last layer") };
    assert_eq!(sha(&rows), "2310385dc13f7f2d386de9b1f7467535fec6917ec6b6fc414b842c6a51d98ce1");
    assert_eq!(oracle::Oracle::new(13).hidden(&PROMPT, 2).as_flattened(), rows);
}
