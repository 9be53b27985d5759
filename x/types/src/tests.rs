use crate::*;

#[test]
fn the_gov_module_account_has_the_address_the_sdk_gives_it() {
    let hrp = Hrp::new("cosmos").unwrap();
    let gov = Address::module("gov");
    assert_eq!(gov.to_bech32(&hrp), "cosmos10d07y265gmmuvt4z0w9aw880jnsr700j6zn9kn");
    assert_eq!(Address::parse("cosmos10d07y265gmmuvt4z0w9aw880jnsr700j6zn9kn", &hrp).unwrap(), gov);
}

#[test]
fn an_address_of_another_chain_or_in_upper_case_is_refused() {
    let text = Address([7; 20]).to_bech32(&Hrp::default());
    assert!(text.starts_with("hold1"));
    let other = Hrp::new("cosmos").unwrap();
    assert!(matches!(Address::parse(&text, &other), Err(AddressError::WrongPrefix { .. })));
    assert_eq!(Address::parse(&text.to_uppercase(), &Hrp::default()), Err(AddressError::UpperCase));
    let mut broken = text.into_bytes();
    let last = broken.last_mut().unwrap();
    *last = if *last == b'q' { b'p' } else { b'q' };
    let broken = String::from_utf8(broken).unwrap();
    assert!(matches!(Address::parse(&broken, &Hrp::default()), Err(AddressError::Malformed(_))));
}

#[test]
fn decimals_convert_exactly_or_not_at_all() {
    assert_eq!(Decimal12::parse("0.10").unwrap(), Decimal12(100_000_000_000));
    assert_eq!(Decimal12::parse("100").unwrap(), Decimal12(100 * ONE));
    assert_eq!(Decimal12::parse("0.100000000000000000").unwrap(), Decimal12(100_000_000_000));
    for bad in ["", ".", "1.", ".5", "1e3", "0.0000000000001", "--1", "+1", "1.2.3"] {
        assert!(Decimal12::parse(bad).is_err(), "{bad}");
    }
    assert_eq!(Decimal12::parse("-1.5").unwrap().to_string(), "-1.5");
    assert_eq!(Decimal12(4 * ONE).to_string(), "4.0");
}

#[test]
fn coins_take_canonical_amounts_only() {
    assert_eq!(Coin::parse("uhold", "340282366920938463463374607431768211455").unwrap().amount, u128::MAX);
    for bad in ["", "01", "+1", "-1", "1.0", "340282366920938463463374607431768211456"] {
        assert!(Coin::parse("uhold", bad).is_err(), "{bad}");
    }
    assert!(Coin::new("x", 1).is_err());
    assert!(Coin::new("1abc", 1).is_err());
}

type Change = fn(&mut ValidationParams);

#[test]
fn each_bad_parameter_is_refused_by_its_name() {
    assert_eq!(ValidationParams::default().validate(), Ok(()));
    assert_eq!(ValidationParams::recommended().validate(), Ok(()));
    let cases: &[(&str, Change)] = &[
        ("expiration_blocks", |p| p.expiration_blocks = 0),
        ("health_cb_miss_threshold_pct", |p| p.health_cb_miss_threshold_pct = 101),
        ("health_cb_min_samples", |p| p.health_cb_min_samples = 0),
        ("health_cb_initial_cooldown_blocks", |p| p.health_cb_initial_cooldown_blocks = 0),
        ("health_cb_max_cooldown_blocks", |p| p.health_cb_max_cooldown_blocks = 49),
        ("health_cb_max_cooldown_blocks", |p| p.health_cb_max_cooldown_blocks = (1 << 40) + 1),
        ("health_cb_probe_share_bp", |p| p.health_cb_probe_share_bp = 10_001),
        ("health_cb_window_blocks", |p| p.health_cb_window_blocks = 15),
        ("health_cb_window_blocks", |p| p.health_cb_window_blocks = -10),
        ("health_cb_window_blocks", |p| p.health_cb_window_blocks = 1_000_010),
        ("health_cb_probation_blocks", |p| p.health_cb_probation_blocks = -1),
        ("health_cb_max_excluded_weight_pct", |p| p.health_cb_max_excluded_weight_pct = 0),
        ("health_cb_max_excluded_weight_pct", |p| p.health_cb_max_excluded_weight_pct = 101),
        ("health_cb_freeze_pct", |p| p.health_cb_freeze_pct = 30),
        ("health_cb_freeze_pct", |p| p.health_cb_freeze_pct = 101),
        ("health_cb_jitter_pct", |p| p.health_cb_jitter_pct = 51),
        ("downtime_good_percentage", |p| p.downtime_good_percentage = Decimal12(0)),
        ("downtime_bad_percentage", |p| p.downtime_bad_percentage = p.downtime_good_percentage),
        ("downtime_bad_percentage", |p| p.downtime_bad_percentage = Decimal12(ONE)),
        ("downtime_h_threshold", |p| p.downtime_h_threshold = Decimal12(0)),
    ];
    for (field, change) in cases {
        let mut params = ValidationParams::default();
        change(&mut params);
        assert_eq!(params.validate().unwrap_err().field, *field);
    }
}

#[test]
fn an_update_mask_names_known_fields_once_each() {
    let known = ["a", "b"];
    assert_eq!(apply_mask(&["*".into()], &known).unwrap(), ["a", "b"]);
    assert_eq!(apply_mask(&["b".into()], &known).unwrap(), ["b"]);
    for bad in [vec![], vec!["c".to_string()], vec!["a".into(), "a".into()], vec!["*".into(), "a".into()]] {
        assert!(apply_mask(&bad, &known).is_err(), "{bad:?}");
    }
}

mod pages {
    use holdfast_proto::cosmos::base::query::v1beta1::PageRequest;
    use holdfast_store::{KvWrite, MemKv};

    use crate::*;

    fn store() -> MemKv {
        let mut s = MemKv::default();
        for i in 0..7_u8 {
            s.set(&[b'p', i], &[i]).unwrap();
        }
        s.set(b"q", &[99]).unwrap();
        s
    }

    fn page(request: PageRequest) -> (Vec<u8>, Vec<u8>, u64) {
        let (items, page) =
            paginate(&store(), b"p", Some(&request), |_, v| Ok(v.first().copied().filter(|v| v % 2 == 0)))
                .unwrap();
        (items, page.next_key, page.total)
    }

    #[test]
    fn a_filtered_page_goes_on_where_it_stopped_and_skips_nothing() {
        let (items, next, total) = page(PageRequest { limit: 2, ..Default::default() });
        assert_eq!((items.as_slice(), total), (&[0, 2][..], 0));
        let (items, next, _) = page(PageRequest { key: next, limit: 2, ..Default::default() });
        assert_eq!((items.as_slice(), next.as_slice()), (&[4, 6][..], &[][..]));
    }

    #[test]
    fn offset_total_and_reverse_agree_with_a_hand_count() {
        let (items, _, total) =
            page(PageRequest { offset: 1, limit: 2, count_total: true, ..Default::default() });
        assert_eq!((items.as_slice(), total), (&[2, 4][..], 4));
        let (items, next, _) = page(PageRequest { limit: 3, reverse: true, ..Default::default() });
        assert_eq!(items, [6, 4, 2]);
        let (items, _, _) = page(PageRequest { key: next, limit: 3, reverse: true, ..Default::default() });
        assert_eq!(items, [0]);
        let (items, _, total) = page(PageRequest::default());
        assert_eq!((items.len(), total), (4, 4));
    }

    #[test]
    fn page_limits_are_refused_by_name_and_never_overflow() {
        let ask = |r: PageRequest| paginate::<()>(&store(), b"p", Some(&r), |_, _| Ok(None));
        assert!(ask(PageRequest { limit: 1001, ..Default::default() }).is_err());
        assert!(ask(PageRequest { offset: u64::MAX, ..Default::default() }).is_err());
        assert!(ask(PageRequest { offset: 1, key: vec![1], ..Default::default() }).is_err());
    }
}
