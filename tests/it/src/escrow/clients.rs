//! The official OpenAI clients, unmodified, against a gateway with real hosts while one of them is being repaired.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::rig::Rig;
use crate::client::block_on;
use crate::process::Running;

const LIMIT: Duration = Duration::from_secs(180);

/// An application as `cargo xtask tools` installs it: what the variable names, or the file below the target folder.
fn application(variable: &str, below: &str) -> PathBuf {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let path = named.unwrap_or_else(|| {
        let program = std::env::current_exe().expect("the test program has a path");
        program.ancestors().nth(3).expect("it lies in target/PROFILE/deps").join("tools").join(below)
    });
    assert!(path.is_file(), "{} is missing: run `cargo xtask tools`", path.display());
    path
}

#[test]
fn the_official_clients_of_python_and_javascript_work_unmodified() {
    let python = application("OPENAI_PYTHON", "openai-python/client.py");
    let javascript = application("OPENAI_JS", "openai-js/client.js");
    block_on(async {
        let rig = Rig::start(&["--hosts", "4", "--fault", "fork:host1@nonce5"]).await;
        rig.flagged("host1").await;
        let interpreter = python.parent().expect("a folder").join("bin/python");
        let programs = [(interpreter, &python), (PathBuf::from("node"), &javascript)];
        let running: Vec<Running> = programs
            .iter()
            .map(|(program, script)| {
                let mut command = Command::new(program);
                command
                    .arg(script)
                    .env("BASE_URL", format!("http://{}/v1", rig.http()))
                    .env("API_KEY", "none");
                Running::start(command.env("MODEL", rig.model()))
            })
            .collect();
        for application in running {
            let out = application.wait(LIMIT).ok();
            let last: Value = serde_json::from_str(out.lines().last().expect("a line")).expect("JSON");
            assert!(last["failed"].as_array().is_some_and(Vec::is_empty), "{out}");
            assert!(last["passed"].as_array().is_some_and(|passed| passed.len() > 10), "{out}");
        }
        assert!(rig.flag("host1").await.is_some());
        rig.stop();
    });
}
