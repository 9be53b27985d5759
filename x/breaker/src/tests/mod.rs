mod golden;
mod model;
