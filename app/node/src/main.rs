//! `holdfastd`: see [`holdfast_node::cli`].

fn main() -> std::process::ExitCode {
    holdfast_node::cli::run()
}
