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

#[test]
fn the_oracle_gives_the_golden_tokens_and_logits() {
    let oracle = oracle::Oracle::new(13);
    // 8 tokens, and how they go on.
    assert_eq!(
        oracle.generate(&PROMPT, 16),
        [8, 185, 33, 96, 154, 45, 82, 93, 33, 96, 154, 45, 82, 93, 41, 96]
    );
    assert_eq!(
        sha(&oracle.logits(&PROMPT)),
        "045d1b9a5a655b6308fbfe8211148f376d14cfd059fdbaf2c7f0b945f9b3c2ae"
    );
}

#[test]
fn exp_without_branches_has_the_bits_of_the_plain_one_and_is_close_to_libm() {
    for i in 0..20_001_u32 {
        let x = (i as f32 - 10_000.0) * 0.01;
        assert_eq!(exp_f32(x).to_bits(), oracle::exp(x).to_bits(), "{x}");
        let libm = f64::from(x.clamp(-87.0, 88.0)).exp();
        if x >= -87.0 {
            assert!((f64::from(exp_f32(x)) / libm - 1.0).abs() < 1e-7, "{x}");
        }
    }
    for (x, bits) in [(0.0, 1.0_f32.to_bits()), (-0.0, 1.0_f32.to_bits()), (f32::NEG_INFINITY, 0)] {
        assert_eq!(exp_f32(x).to_bits(), bits);
    }
    assert_eq!(exp_f32(f32::INFINITY), exp_f32(88.0));
    assert_eq!(exp_f32(-87.000_01), 0.0);
    assert!(exp_f32(-87.0) > 0.0);
    assert!(exp_f32(f32::NAN).is_nan());
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(6))]

    #[test]
    fn cached_is_stateless_is_any_chunks_is_any_cut(
        history in proptest::collection::vec(0_u32..256, 1..56),
        ends in proptest::collection::vec(1_usize..64, 1..8),
    ) {
        let mut chunks: Vec<&[u32]> = Vec::new();
        let mut rest = &history[..];
        for end in ends {
            let (chunk, tail) = rest.split_at(end.min(rest.len()));
            if !chunk.is_empty() {
                chunks.push(chunk);
            }
            rest = tail;
        }
        chunks.extend(rest.chunks(64));
        let (whole, kv) = run(&[(0, 4)], &chunks);
        let one_by_one: Vec<&[u32]> = history.chunks(1).collect();
        for cuts in [&[(0, 4)][..], &[(0, 2), (2, 4)], &[(0, 1), (1, 3), (3, 4)]] {
            let same_chunks = run(cuts, &chunks);
            proptest::prop_assert_eq!(&same_chunks.0, &whole);
            proptest::prop_assert_eq!(same_chunks.1, kv);
            let decoded = run(cuts, &one_by_one);
            proptest::prop_assert_eq!(decoded.0.last(), whole.last());
            proptest::prop_assert_eq!(decoded.1, kv);
        }
        let oracle = oracle::Oracle::new(13).logits(&history);
        proptest::prop_assert_eq!(&whole.last().unwrap().1, &oracle);
    }
}

#[test]
fn many_blocks_of_positions_are_as_right_as_one_and_past_the_last_is_refused() {
    let whole = model((0, 4));
    let mut kv = whole.new_kv(u32::MAX);
    let history: Vec<u32> = (0..512).map(|i| i * 7 % 256).collect();
    for (i, chunk) in history.chunks(64).enumerate() {
        let position = i as u32 * 64;
        let out = whole.forward(&mut kv, position, Input::Tokens(chunk), Sampling::GREEDY).unwrap();
        if position == 64 {
            let Output::Token { logits, .. } = out else { panic!("no token") };
            assert_eq!(logits, oracle::Oracle::new(13).logits(&history[..128]));
        }
    }
    assert!(whole.forward(&mut kv, 512, Input::Tokens(&[1]), Sampling::GREEDY).is_err());
}

#[test]
fn orders_that_do_not_fit_are_errors_and_leave_the_rows() {
    let first = model((0, 2));
    let mut kv = first.new_kv(4);
    first.forward(&mut kv, 0, Input::Tokens(&[1, 2]), Sampling::GREEDY).unwrap();
    let before = kv.digest();
    let wrong: [(u32, Input<'_>); 8] = [
        (2, Input::Tokens(&[])),
        (2, Input::Tokens(&[1, 256])),
        (2, Input::Tokens(&[1, 2, 3])),
        (1, Input::Tokens(&[1])),
        (3, Input::Tokens(&[1])),
        (u32::MAX, Input::Tokens(&[1])),
        (2, Input::Hidden(&[0.0; 32])),
        (0, Input::Tokens(&[1])),
    ];
    for (position, input) in wrong {
        assert!(first.forward(&mut kv, position, input, Sampling::GREEDY).is_err(), "{position} {input:?}");
        assert_eq!(kv.digest(), before);
    }
    let last = model((2, 4));
    let mut kv = last.new_kv(4);
    for input in [Input::Hidden(&[0.0; 31]), Input::Hidden(&[]), Input::Tokens(&[1])] {
        assert!(last.forward(&mut kv, 0, input, Sampling::GREEDY).is_err(), "{input:?}");
    }
    let nan = last.forward(&mut kv, 0, Input::Hidden(&[f32::NAN; 32]), Sampling::GREEDY);
    assert!(matches!(nan, Err(ModelError::Compute(_))), "{nan:?}");
    assert_eq!(last.rows(&kv), 0);
    for layers in [(0, 0), (2, 1), (0, 5), (4, 4), (u32::MAX, u32::MAX)] {
        assert!(ReferenceModel::new(13, layers).is_err(), "{layers:?}");
    }
}

#[test]
fn truncated_kv_goes_on_as_if_nothing_had_been() {
    let whole = model((0, 4));
    let mut kv = whole.new_kv(100);
    whole.forward(&mut kv, 0, Input::Tokens(&PROMPT), Sampling::GREEDY).unwrap();
    whole.forward(&mut kv, 4, Input::Tokens(&[99; 40]), Sampling::GREEDY).unwrap();
    whole.truncate(&mut kv, 4);
    let out = whole.forward(&mut kv, 4, Input::Tokens(&[8]), Sampling::GREEDY).unwrap();
    assert!(matches!(out, Output::Token { token: 185, .. }));
}

#[test]
fn text_goes_in_as_bytes_and_comes_out_printable() {
    assert_eq!(encode("Aé"), [65, 0xc3, 0xa9]);
    assert_eq!(decode(&[0, 1, 94, 95, 255]), " !~ a");
    // 8 + 32 = 40 is "(", 185 mod 95 + 32 = 122 is "z".
    assert_eq!(decode(&[8, 185]), "(z");
}
