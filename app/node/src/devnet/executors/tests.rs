//! Both forms read, refused and printed; what each profile does in each block.

use super::*;

fn one(spec: &str) -> ExecutorSpec {
    let mut executors = parse_spec(spec).expect("good spec");
    assert_eq!(executors.len(), 1, "{spec}");
    executors.remove(0)
}

fn refused(spec: &str) -> SpecError {
    parse_spec(spec).expect_err(spec)
}

#[test]
fn the_default_executors_are_those_of_the_default_spec() {
    let executors = default_executors();
    assert_eq!(parse_spec(DEFAULT_SPEC).expect("default"), executors);
    assert_eq!(executors.len(), 20);
    let total: u64 = executors.iter().map(|executor| executor.weight).sum();
    let faulty: u64 =
        executors.iter().filter(|e| e.profile.is_faulty()).map(|executor| executor.weight).sum();
    assert_eq!((total, faulty * 100 / total), (2_000, 46));
    assert_eq!(faulty, 920);
    // 7i mod 5 for i = 0..5 is 0, 2, 4, 1, 3.
    let weights: Vec<u64> = executors.iter().take(6).map(|executor| executor.weight).collect();
    assert_eq!(weights, [80, 100, 120, 90, 110, 80]);
    assert!(executors.iter().all(|executor| executor.models == ["model-a", "model-b"]));
    assert_eq!(models_served(&executors), ["model-a", "model-b"]);
}

#[test]
fn every_profile_is_read_and_printed_back() {
    for spec in [
        "healthy",
        "degraded(20)",
        "degraded(12.5)",
        "degraded(0.05)",
        "dying(40%)",
        "dying(300)",
        "flapping(80,30)",
        "recovering(30%..45%)",
        "recovering(100..200)",
        "recovering(10..45.25%)",
        "late(25)",
        "refusing",
        "liar",
    ] {
        assert_eq!(one(spec).profile.to_string(), spec);
    }
    assert_eq!(one("degraded(20%)").profile, Profile::Degraded { miss_bp: 2_000 });
    assert_eq!(one("dying(0.5%)").profile, Profile::Dying { at: At::Share(50) });
}

#[test]
fn counts_weights_models_separators_and_spaces_are_read() {
    let executors =
        parse_spec(" 2*healthy @weight=120 ; flapping( 8 , 3 )@models=a+b@weight=7,late(2)@models=c/d-1.5 ")
            .expect("good");
    assert_eq!(executors.len(), 4);
    assert_eq!((executors[0].weight, executors[1].weight), (120, 120));
    assert_eq!(executors[2].profile, Profile::Flapping { up: 8, down: 3 });
    assert_eq!((executors[2].weight, executors[2].models.join(" ").as_str()), (7, "a b"));
    assert_eq!((executors[3].weight, executors[3].models.join(" ").as_str()), (90, "c/d-1.5"));
    assert_eq!(models_served(&executors), ["model-a", "model-b", "a", "b", "c/d-1.5"]);
}

#[test]
fn every_malformed_spec_has_its_code_field_and_position() {
    let cases: &[(&str, u32, &str, usize)] = &[
        ("", 122, "profile", 1),
        ("healthy,", 122, "profile", 9),
        ("healthy,,liar", 122, "profile", 9),
        ("healthi", 122, "profile", 1),
        ("healthy,Liar", 122, "profile", 9),
        ("liar,3*dead(4)", 122, "profile", 8),
        ("dying(4", 121, "profile", 8),
        ("dying(4))", 121, "profile", 10),
        ("dying(4)x", 121, "profile", 10),
        ("healthy()", 123, "profile", 9),
        ("liar(3)", 123, "profile", 6),
        ("degraded", 123, "profile", 9),
        ("degraded()", 123, "profile", 10),
        ("degraded(101)", 123, "profile", 10),
        ("degraded(-1)", 123, "profile", 10),
        ("degraded(1.234)", 123, "profile", 10),
        ("degraded(1.)", 123, "profile", 10),
        ("degraded(.5)", 123, "profile", 10),
        ("dying(0)", 123, "profile", 7),
        ("dying(100.01%)", 123, "profile", 7),
        ("dying(x%)", 123, "profile", 7),
        ("dying(1000000001)", 123, "profile", 7),
        ("flapping(80)", 123, "profile", 10),
        ("flapping(80,0)", 123, "profile", 13),
        ("flapping(80,3,4)", 123, "profile", 13),
        ("recovering(30%)", 123, "profile", 12),
        ("recovering(45%..30%)", 123, "profile", 12),
        ("recovering(30..30)", 123, "profile", 12),
        ("recovering(30%..)", 123, "profile", 17),
        ("late(0)", 123, "profile", 6),
        ("late(1.5)", 123, "profile", 6),
        ("0*healthy", 124, "count", 1),
        ("x*healthy", 124, "count", 1),
        ("10001*healthy", 124, "count", 1),
        ("liar,10000*healthy", 124, "count", 6),
        ("healthy@weight=0", 125, "weight", 16),
        ("healthy@weight=", 125, "weight", 16),
        ("healthy@weight=-5", 125, "weight", 16),
        ("healthy@weight=1000000000001", 125, "weight", 16),
        ("healthy@weight=99999999999999999999", 125, "weight", 16),
        ("healthy@models=", 126, "models", 16),
        ("healthy@models=a++b", 126, "models", 18),
        ("healthy@models=a+b+a", 126, "models", 20),
        ("healthy@models=a b", 126, "models", 16),
        ("healthy@models=m\u{e4}dchen", 126, "models", 16),
        ("healthy@speed=3", 127, "setting", 9),
        ("healthy@weight", 127, "setting", 9),
        ("healthy@weight=1@weight=2", 127, "setting", 18),
        ("healthy@", 127, "setting", 9),
    ];
    for (spec, code, field, character) in cases {
        let error = refused(spec);
        assert_eq!((error.code, error.field), (*code, *field), "{spec}: {error}");
        assert_eq!(error.place, format!("character {character}"), "{spec}: {error}");
        assert!(EXECUTOR_ERROR_CODES.iter().any(|(known, _)| known == code));
    }
    let many = (0..17).map(|n| format!("m{n}")).collect::<Vec<_>>().join("+");
    assert_eq!(refused(&format!("liar@models={many}")).code, 126);
    let long = "m".repeat(65);
    assert_eq!(refused(&format!("liar@models={long}")).code, 126);
}

#[test]
fn an_error_reads_as_one_sentence_with_the_flag() {
    assert_eq!(
        refused("healthy,late(0)").to_string(),
        "--executors: character 14: profile: expected a number of blocks from 1 to 1000000000, found \"0\" \
         (devnet error 123)"
    );
}

#[test]
fn the_toml_form_gives_the_same_list_as_the_short_form() {
    let text = "
        [[executor]]
        profile = \"healthy\"
        count = 11
        [[executor]]
        profile = \"degraded(20)\"
        weight = 7
        [[executor]]
        profile = \"recovering(30%..45%)\"
        models = [\"a\", \"b\"]
    ";
    let short = parse_spec("11*healthy,degraded(20)@weight=7,recovering(30%..45%)@models=a+b");
    assert_eq!(parse_toml(text), short);
}

#[test]
fn every_malformed_file_has_its_code_and_place() {
    let entry =
        |text: &str| parse_toml(&format!("[[executor]]\nprofile = \"liar\"\n{text}")).expect_err(text);
    let error = entry("speed = 3\n");
    assert_eq!((error.code, error.place.as_str()), (129, "line 3, column 1"), "{error}");
    assert_eq!(entry("weight = \"heavy\"\n").code, 129);
    assert_eq!(entry("weight = -1\n").code, 129);
    assert_eq!(entry("weight = 0\n").code, 125);
    assert_eq!(entry("count = 0\n").code, 124);
    assert_eq!(entry("count = 10001\n").code, 124);
    assert_eq!(entry("models = []\n").code, 126);
    assert_eq!(entry("models = [\"a\", \"a\"]\n").code, 126);
    let error = entry("[[executor]]\nprofile = \"dying(0)\"\n");
    assert_eq!((error.code, error.place.as_str()), (123, "executor entry 2"));
    assert_eq!(parse_toml("").expect_err("empty").code, 129);
    assert_eq!(parse_toml("executor = []").expect_err("none").code, 129);
    assert_eq!(parse_toml("[[executor]\n").expect_err("syntax").code, 129);
    assert_eq!(parse_toml("[[executor]]\ncount = 1\n").expect_err("no profile").code, 129);
}

#[test]
fn load_takes_a_toml_file_or_the_short_form() {
    assert_eq!(load("2*liar").expect("short").len(), 2);
    let error = load("no-such-file.toml").expect_err("missing");
    assert_eq!((error.code, error.field), (128, "file"));
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("executors.toml");
    std::fs::write(&path, "[[executor]]\nprofile = \"liar\"\n").expect("write");
    let loaded = load(path.to_str().expect("text path"));
    assert_eq!(loaded.expect("file").len(), 1);
}

#[test]
fn shares_of_the_run_become_blocks_rounded_down_but_never_before_block_one() {
    assert_eq!(At::Share(4_000).block(709), 283);
    assert_eq!(At::Share(10_000).block(709), 709);
    assert_eq!(At::Share(0).block(709), 1);
    assert_eq!(At::Share(3_000).block(u64::MAX), 5_534_023_222_112_865_484);
    assert_eq!(At::Block(12).block(3), 12);
}

#[test]
fn first_fault_blocks_are_those_of_the_profile() {
    let first =
        |spec: &str, run: u64| one(spec).profile.resolve(run).expect("resolves").first_fault_block(run);
    assert_eq!(first("healthy", 709), None);
    assert_eq!(first("degraded(20)", 709), Some(1));
    assert_eq!(first("degraded(0)", 709), None);
    assert_eq!(first("dying(40%)", 709), Some(283));
    assert_eq!(first("dying(800)", 709), None);
    assert_eq!(first("flapping(80,30)", 709), Some(81));
    assert_eq!(first("flapping(80,30)", 80), None);
    assert_eq!(first("recovering(30%..45%)", 709), Some(212));
    assert_eq!(first("recovering(30%..45%)", 3), None);
    assert_eq!(first("late(25)", 709), Some(1));
    assert_eq!(first("refusing", 709), Some(1));
    assert_eq!(first("liar", 709), Some(1));
    let error = one("recovering(500..10%)").profile.resolve(709).expect_err("backwards");
    assert_eq!(error.code, 123);
    assert!(error.to_string().contains("block 500 to block 70"), "{error}");
}

#[test]
fn fault_spans_cover_exactly_the_blocks_that_are_down() {
    for spec in
        ["dying(40%)", "flapping(80,30)", "flapping(1,1)", "recovering(30%..45%)", "recovering(100..9999)"]
    {
        let profile = one(spec).profile.resolve(709).expect("resolves");
        let spans = profile.fault_spans(709, 1_000);
        for height in 1..=709 {
            let inside = spans.iter().any(|(from, to)| (*from..=*to).contains(&height));
            assert_eq!(inside, profile.is_down(height), "{spec} at {height}");
        }
    }
    let flapping = one("flapping(80,30)").profile.resolve(709).expect("resolves");
    assert_eq!(flapping.fault_spans(709, 2), [(81, 110), (191, 220)]);
    let refusing = ResolvedProfile::Refusing;
    assert_eq!(refusing.fault_spans(709, 9), [(1, 709)]);
    assert!(ResolvedProfile::Healthy.fault_spans(709, 9).is_empty());
    // A huge period neither overflows nor loops.
    let huge = ResolvedProfile::Flapping { up: i64::MAX - 1, down: i64::MAX };
    assert!(!huge.is_down(5));
    assert!(huge.fault_spans(709, 9).is_empty());
}

#[test]
fn behaviour_follows_the_profile_in_the_block_of_the_answer() {
    use Action::*;
    let at = |spec: &str, start: i64, answer: i64, draw: u64| {
        behaviour(&one(spec).profile.resolve(1_000).expect("resolves"), start, answer, draw)
    };
    assert_eq!(at("healthy", 1, 2, 50), Answer);
    assert_eq!(at("dying(400)", 398, 399, 9_999), Answer);
    assert_eq!(at("dying(400)", 399, 400, 9_999), Silent);
    assert_eq!(at("flapping(80,30)", 79, 80, 9_999), Answer);
    assert_eq!(at("flapping(80,30)", 80, 81, 9_999), Silent);
    assert_eq!(at("flapping(80,30)", 109, 110, 9_999), Silent);
    // Down when it started, up when the answer is due: it answers.
    assert_eq!(at("flapping(80,30)", 110, 111, 9_999), Answer);
    assert_eq!(at("flapping(80,30)", 190, 191, 9_999), Silent);
    assert_eq!(at("recovering(300..450)", 1, 299, 9_999), Answer);
    assert_eq!(at("recovering(300..450)", 1, 300, 9_999), Silent);
    assert_eq!(at("recovering(300..450)", 1, 449, 9_999), Silent);
    assert_eq!(at("recovering(300..450)", 1, 450, 9_999), Answer);
    assert_eq!(at("late(25)", 10, 11, 9_999), AnswerLate { height: 35 });
    assert_eq!(at("late(25)", 10, 35, 9_999), Answer);
    assert_eq!(at("late(25)", 10, 40, 9_999), Answer);
    assert_eq!(at("refusing", 10, 11, 9_999), ReportFailure);
    assert_eq!(at("liar", 10, 11, 9_999), FinishOthers);
    assert_eq!(at("degraded(20)", 10, 11, 2_049), Silent);
    assert_eq!(at("degraded(20)", 10, 11, 2_050), Answer);
    assert_eq!(at("degraded(100)", 10, 11, 9_999), Silent);
}

#[test]
fn the_base_miss_holds_under_every_profile() {
    for executor in default_executors() {
        let profile = executor.profile.resolve(1_000).expect("resolves");
        assert_eq!(behaviour(&profile, 1, 2, 0), Action::Silent);
        assert_eq!(behaviour(&profile, 1, 2, BASE_MISS_BP - 1), Action::Silent);
    }
    let silent = (0..10_000)
        .filter(|draw| behaviour(&ResolvedProfile::Healthy, 1, 2, *draw) == Action::Silent)
        .count();
    assert_eq!(silent, 50);
}
