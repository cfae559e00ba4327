//! `index …`: what answers questions about millions of paths, made, kept up to date, described and asked.

mod ask;
mod build;
mod describe;
mod from;
mod make;
mod measure;
mod update;

use crate::args::index::IndexCommand;
use crate::args::low::GlobalArgs;
use crate::failure::Result;

/// `adit index …`
pub fn index(command: &IndexCommand, global: &GlobalArgs) -> Result<()> {
    match command {
        IndexCommand::Build(args) => build::build(args, global),
        IndexCommand::Update(args) => update::update(args, global),
        IndexCommand::Info(args) => describe::info(args, global),
        IndexCommand::Check(args) => describe::check(args, global),
        IndexCommand::Find(args) => ask::find(args, global),
        IndexCommand::Resolve(args) => ask::resolve(args, global),
        IndexCommand::Measure(args) => measure::measure(args),
        IndexCommand::Dupes(args) => ask::dupes(args, global),
        IndexCommand::Diff(args) => ask::diff(args, global),
        IndexCommand::Du(args) => ask::du(args, global),
        IndexCommand::Top(args) => ask::top(args, global),
    }
}
