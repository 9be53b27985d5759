//! The command tree beside the descriptor set.

use super::*;

#[test]
fn the_command_tree_is_sound_and_every_help_renders() {
    command().unwrap().debug_assert();
    fn walk(command: &mut clap::Command, seen: &mut usize) {
        assert!(command.get_about().is_some(), "{} has no text", command.get_name());
        assert!(!command.get_about().unwrap().to_string().starts_with("Flags of"), "{}", command.get_name());
        assert!(!command.render_long_help().to_string().is_empty());
        *seen += 1;
        for inner in command.get_subcommands_mut() {
            walk(inner, seen);
        }
    }
    let mut seen = 0;
    let mut tree = command().unwrap();
    walk(&mut tree, &mut seen);
    assert!(seen > 60, "{seen} commands");
}

#[test]
fn every_message_of_the_descriptor_set_has_a_command_with_a_flag_for_every_field_but_its_signer() {
    let tree = built();
    let mut found = BTreeSet::new();
    for service in pool().unwrap().services().filter(|service| service.name() == "Msg") {
        for method in service.methods() {
            let leaf = at(&tree, &["tx", &module_of(service.package_name()), &kebab(method.name())]);
            let flags: BTreeSet<&str> = leaf.get_arguments().filter_map(clap::Arg::get_long).collect();
            let signer = holdfast_app::tx::signer_field(&format!("/{}", method.input().full_name()));
            for field in method.input().fields() {
                let flag = kebab(field.name());
                assert_eq!(
                    flags.contains(flag.as_str()),
                    u64::from(field.number()) != signer,
                    "{} {flag}",
                    method.full_name()
                );
            }
            found.insert(method.input().full_name().to_owned());
        }
    }
    // No request is left out: every MsgDoX of the set belongs to one of these services.
    let requests: BTreeSet<String> = pool()
        .unwrap()
        .all_messages()
        .filter(|m| m.name().starts_with("Msg") && !m.name().ends_with("Response") && m.name() != "MsgData")
        .map(|m| m.full_name().to_owned())
        .collect();
    assert_eq!(found, requests);
    assert!(found.len() >= 18, "{found:?}");
    for path in [
        "bank send",
        "inference start-inference",
        "participants announce-maintenance",
        "breaker set-breaker-override",
    ] {
        let path: Vec<&str> = ["tx"].into_iter().chain(path.split(' ')).collect();
        at(&tree, &path);
    }
}

#[test]
fn every_query_of_the_descriptor_set_has_a_command_with_a_flag_for_every_field() {
    let tree = built();
    let mut count = 0;
    for service in pool().unwrap().services() {
        if service.name() != "Query" && service.full_name() != "cosmos.base.tendermint.v1beta1.Service" {
            continue;
        }
        for method in service.methods() {
            let leaf = at(&tree, &["query", &module_of(service.package_name()), &kebab(method.name())]);
            let flags: BTreeSet<&str> = leaf.get_arguments().filter_map(clap::Arg::get_long).collect();
            assert!(flags.contains("height") && flags.contains("grpc-addr") && flags.contains("output"));
            for field in method.input().fields() {
                if field.name() == "pagination" {
                    for flag in ["page-key", "offset", "limit", "count-total", "reverse"] {
                        assert!(flags.contains(flag), "{} {flag}", method.full_name());
                    }
                } else {
                    assert!(
                        flags.contains(kebab(field.name()).as_str()),
                        "{} {}",
                        method.full_name(),
                        field.name()
                    );
                }
            }
            count += 1;
        }
    }
    assert!(count >= 30, "{count} queries");
    for path in ["inference get-random-executor", "tendermint get-block-by-height", "auth account", "tx"] {
        let path: Vec<&str> = ["query"].into_iter().chain(path.split(' ')).collect();
        at(&tree, &path);
    }
}

#[test]
fn names_of_rpcs_become_words() {
    for (name, words) in [
        ("GetRandomExecutor", "get-random-executor"),
        ("Sprt", "sprt"),
        ("ABCIQuery", "abci-query"),
        ("V2Params", "v2-params"),
        ("max_tokens", "max-tokens"),
    ] {
        assert_eq!(kebab(name), words);
    }
}

#[test]
fn a_bad_value_of_any_field_is_refused_by_the_name_of_its_flag() {
    let (_dir, home) = home_of_alice();
    let mut tried = 0;
    for service in pool().unwrap().services() {
        let verb = match service.name() {
            "Msg" => "tx",
            "Query" => "query",
            _ if service.package_name() == "cosmos.base.tendermint.v1beta1" => "query",
            _ => continue,
        };
        let module = module_of(service.package_name());
        for method in service.methods() {
            for field in method.input().fields() {
                let is_mask =
                    field.kind().as_message().is_some_and(|m| m.full_name() == "google.protobuf.FieldMask");
                // Any text is a text; what the chain thinks of it is tested there.
                if field.kind() == Kind::String || is_mask || (verb == "tx" && field.number() == 1) {
                    continue;
                }
                let flags = if field.name() == "pagination" {
                    ["page-key", "offset", "limit", "count-total", "reverse"].map(str::to_owned).to_vec()
                } else {
                    vec![kebab(field.name())]
                };
                for flag in flags {
                    let flag = format!("--{flag}");
                    let name = kebab(method.name());
                    let mut words = vec![verb, &module, &name, &flag, "~1"];
                    if verb == "tx" {
                        words.extend(["--from", "alice", "--home", &home, "--generate-only"]);
                    }
                    run(&words).refused(12, &[&flag, "~1", "give"]);
                    tried += 1;
                }
            }
        }
    }
    assert!(tried > 50, "{tried} flags");
}
